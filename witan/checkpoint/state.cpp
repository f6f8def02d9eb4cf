#include "witan/checkpoint/state.h"

#include "witan/checkpoint/manifest.h"

namespace witan {

void check_state(const StateTensor& state) {
  const Tensor& local = state.local;
  require<ShapeError>(local.defined() && local.contiguous() && !local.is_meta(), "checkpoint: \"", state.name,
                      "\" must be a contiguous tensor with values");
  const Shape& global = state.global_shape;
  const int64_t rows = row_count(local.shape());
  const Shape expected = global.dims() == 0 ? global : global.with(0, rows);
  require<ShapeError>(local.shape() == expected, "checkpoint: \"", state.name, "\" must hold rows of the global ",
                      global, ", got ", local.shape());
  require<ShapeError>(state.first_row >= 0 && state.first_row <= row_count(global) - rows, "checkpoint: \"", state.name,
                      "\": rows ", state.first_row, " to ", state.first_row + rows, " are not rows of the global ",
                      global);
}

}  // namespace witan
