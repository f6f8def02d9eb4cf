#include "witan/kernels/attention/rope.h"

#include <algorithm>

#include "witan/kernels/attention/cpu/rotate.h"
#include "witan/kernels/common/cpu/rows.h"

namespace witan::kernels::cpu {
void rope(Stream& stream, const Tensor& y, const Tensor& table, const Tensor& x, const Tensor& positions,
          const RopeArgs& args) {
  const int64_t tokens = positions.elements(), heads = x.size(2), hd = x.size(3);
  if (x.elements() == 0) return;
  const int32_t* position = positions.data<int32_t>();
  const int64_t highest = *std::max_element(position, position + tokens);
  // Sequences of a batch share positions, so the table has a row per position; or, where that would take more rows than
  // there are tokens (a late position decoded alone), a row per token.
  const bool by_position = highest < tokens;
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    A* angles = table.data<A>();
    if (by_position)
      fill_table(stream, angles, highest + 1, args, [](int64_t r) { return r; });
    else
      fill_table(stream, angles, tokens, args, [&](int64_t r) { return position[r]; });
    stream.pool().for_ranges(tokens, kTaskElements / (heads * hd), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const A* turn = angles + (by_position ? position[t] : t) * args.dims;
        for (int64_t row = t * heads; row < (t + 1) * heads; ++row)
          rotate_head(y.data<T>() + row * hd, x.data<T>() + row * hd, turn, hd, args, A(1));  // the table has the sign
      }
    });
  });
}

}  // namespace witan::kernels::cpu
