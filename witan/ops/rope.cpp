#include "witan/ops/rope.h"

#include <cmath>

#include "witan/kernels/rope.h"

namespace witan::ops {
namespace {

int64_t rotated_dims(int64_t hd, double fraction) {
  const double dims = static_cast<double>(hd) * fraction;
  const int64_t nearest = std::llround(dims);
  require<ShapeError>(
      fraction > 0 && fraction <= 1 && std::abs(dims - static_cast<double>(nearest)) < 1e-6 && nearest % 2 == 0,
      "rope: an even number of each head's ", hd, " dims must be rotated, but a fraction of ", fraction, " is ", dims);
  return nearest;
}

Tensor rotated(Stream& s, const Tensor& x, const Tensor& positions, const kernels::RopeArgs& args) {
  const Tensor y = s.empty_like(x);
  const Tensor table = s.empty({positions.elements(), args.dims}, accumulator(x.dtype()), MemoryTag::workspace);
  kernels::rope(s, y, table, x, positions, args);
  return y;
}

}  // namespace

Var rope(Tape& tape, const Var& x, const Tensor& positions, double base, bool interleaved, double fraction) {
  require<ShapeError>(x.shape().dims() == 4 && x.value().contiguous() && is_floating(x.dtype()),
                      "rope: x must be [B, S, H, hd], floating and contiguous, got ", x.dtype(), " ", x.shape());
  require<ShapeError>(positions.shape() == Shape{x.size(0), x.size(1)} && positions.dtype() == DType::i32,
                      "rope: positions must be [B=", x.size(0), ", S=", x.size(1), "] int32, got ", positions.dtype(),
                      " ", positions.shape());
  require<ShapeError>(base > 0, "rope: base must be positive, got ", base);
  if (tape.stream().device().kind == Device::Kind::cpu)  // a GPU is not waited for
    for (const int32_t position : positions.span<int32_t>())
      require<DataError>(position >= 0, "rope: a position cannot be negative, got ", position);

  kernels::RopeArgs args{base, rotated_dims(x.size(3), fraction), interleaved, false};
  const Tensor y = rotated(tape.stream(), x.value(), positions, args);
  args.inverse = true;
  return tape.record("rope", y, {x},
                     [x = tape.slot(x), positions = tape.save(positions), args](Backward& b, const Tensor& dy) {
                       b.add(x, rotated(b.stream(), dy, b.value(positions), args));
                     });
}

}  // namespace witan::ops
