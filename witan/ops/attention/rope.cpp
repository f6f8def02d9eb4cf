#include "witan/ops/attention/rope.h"

namespace witan::ops {
namespace {

Tensor rotated(Stream& s, const Tensor& x, const Tensor& positions, const kernels::RopeArgs& args) {
  const Tensor y = s.empty_like(x);
  const Tensor table = s.empty({positions.elements(), args.dims}, accumulator(x.dtype()), MemoryTag::workspace);
  kernels::rope(s, y, table, x, positions, args);
  return y;
}

}  // namespace

Var rope(Tape& tape, const Var& x, const Tensor& positions, const kernels::RopeArgs& rope) {
  require<ShapeError>(x.shape().dims() == 4 && x.value().contiguous() && is_floating(x.dtype()),
                      "rope: x must be [B, S, H, hd], floating and contiguous, got ", x.dtype(), " ", x.shape());
  require<ShapeError>(positions.shape() == Shape{x.size(0), x.size(1)} && positions.dtype() == DType::i32,
                      "rope: positions must be [B=", x.size(0), ", S=", x.size(1), "] int32, got ", positions.dtype(),
                      " ", positions.shape());
  require<ShapeError>(rope.base > 0, "rope: base must be positive, got ", rope.base);
  require<ShapeError>(rope.dims > 0 && rope.dims <= x.size(3) && rope.dims % 2 == 0,
                      "rope: an even number of each head's ", x.size(3), " dims must be rotated, got ", rope.dims);
  if (tape.stream().device().kind == Device::Kind::cpu)  // a GPU is not waited for
    for (const int32_t position : positions.span<int32_t>())
      require<DataError>(position >= 0, "rope: a position cannot be negative, got ", position);

  kernels::RopeArgs args = rope;
  args.inverse = false;
  const Tensor y = rotated(tape.stream(), x.value(), positions, args);
  args.inverse = true;
  return tape.record("rope", y, {x},
                     [x = tape.slot(x), positions = tape.save(positions), args](Backward& b, const Tensor& dy) {
                       b.add(x, rotated(b.stream(), dy, b.value(positions), args));
                     });
}

}  // namespace witan::ops
