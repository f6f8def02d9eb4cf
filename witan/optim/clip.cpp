#include "witan/optim/clip.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "witan/kernels/optimizer.h"

namespace witan {
namespace {

// Elements of what is summed apart: an expert, or all.
int64_t piece_of(const Parameter& parameter) {
  const Shape& local = parameter.value().shape();
  if (!parameter.spec().expert) return local.elements();
  return local[0] == 0 ? 0 : local.elements() / local[0];
}

}  // namespace

int64_t chunks_before(const Parameter& parameter, int64_t element) {
  const int64_t piece = piece_of(parameter);
  return piece == 0 ? 0 : element / piece * kernels::chunks_of(piece) + kernels::chunks_of(element % piece);
}

void add_square_sums(std::vector<kernels::SquareSumsItem>& items, const Parameter& parameter, const Tensor& tensor,
                     int64_t first, int64_t elements, int64_t first_row) {
  const int64_t piece = piece_of(parameter);
  const Tensor flat = tensor.reshape({tensor.elements()});
  while (elements > 0) {  // what is left of a piece, whole ones, and the beginning of one
    const int64_t begun = first % piece, whole = begun == 0 ? elements / piece : 0;
    const Shape shape = whole > 0 ? Shape{whole, piece} : Shape{1, std::min(piece - begun, elements)};
    items.push_back({flat.narrow(0, first, shape.elements()).reshape(shape), first_row});
    first_row += shape[0] * kernels::chunks_of(shape[1]);
    first += shape.elements();
    elements -= shape.elements();
  }
}

void clip(Stream& stream, const StepState& step, const Tensor& total, double max_norm) {
  kernels::clip_by_norm(stream, step.tensor(), total, max_norm);
}

Norm2 read_norm(Stream& stream, const Tensor& total) {
  std::array<double, 2> sums{};
  stream.read(sums.data(), total);
  return {std::sqrt(sums[0]), sums[1]};
}

}  // namespace witan
