#include "witan/nn/attention/attention.h"

#include <algorithm>

#include "witan/kernels/attention/heads.h"
#include "witan/nn/attention/grouped_query.h"
#include "witan/nn/attention/latent.h"

namespace witan {

Tensor rotary_angles(Stream& stream, const Positions& where, const kernels::RopeArgs& rope, DType dtype) {
  if (rope.dims == 0) return {};
  const auto made = std::ranges::find(where.tables, rope, &RotaryTable::rope);
  if (made != where.tables.end()) return made->angles;
  const Tensor angles = stream.empty({where.positions.elements(), rope.dims}, dtype);
  kernels::rotary_table(stream, angles, where.positions, rope);
  return angles;
}

std::unique_ptr<Attention> make_attention(const Builder& builder, const AttentionSpec& spec, int64_t width, Bias bias,
                                          const ContextAxis& context, const NormConfig& norm) {
  if (spec.latent.kv_rank > 0) return std::make_unique<LatentAttention>(builder, spec, width, context);
  return std::make_unique<GroupedQueryAttention>(builder, spec, width, bias, context, norm);
}

}  // namespace witan
