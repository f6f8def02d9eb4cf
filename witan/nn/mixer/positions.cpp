#include "witan/nn/mixer/positions.h"

#include <algorithm>

#include "witan/kernels/attention/heads.h"

namespace witan {

Tensor rotary_angles(Stream& stream, const Positions& where, const kernels::RopeArgs& rope, DType dtype) {
  if (rope.dims == 0) return {};
  const auto made = std::ranges::find(where.tables, rope, &RotaryTable::rope);
  if (made != where.tables.end()) return made->angles;
  const Tensor angles = stream.empty({where.positions.elements(), rope.dims}, dtype);
  kernels::rotary_table(stream, angles, where.positions, rope);
  return angles;
}

}  // namespace witan
