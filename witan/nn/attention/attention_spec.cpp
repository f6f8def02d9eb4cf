#include "witan/nn/attention/attention_spec.h"

#include <fmt/core.h>

#include <algorithm>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {
namespace {

std::string rotation_text(const kernels::RopeArgs& rope) {
  if (rope.dims == 0) return ", no RoPE";
  if (rope.scaling.type == kernels::RopeScaling::Type::none) return "";
  return fmt::format(", positions stretched {:g} times", rope.scaling.factor);
}

}  // namespace

std::string AttentionSpec::describe() const {
  return (window > 0 ? cat("sliding window of ", window, " tokens") : full_text()) + rotation_text(rope);
}

double AttentionSpec::mixing_flops(int64_t seq_length) const {
  const auto length = static_cast<double>(seq_length), seen = static_cast<double>(window);
  const double positions = window == 0 || window >= seq_length ? length / 2 : seen - seen * seen / (2 * length);
  return 2 * positions * static_cast<double>(query_channels());
}

double AttentionSpec::decoding_flops(int64_t position) const {
  const int64_t seen = window > 0 ? std::min(window, position + 1) : position + 1;
  return 2 * static_cast<double>(seen * query_channels());
}

double AttentionSpec::kept_channels() const {
  return static_cast<double>(query_channels() + key_channels());
}

// As make_kv_cache() makes it.
StateBytes AttentionSpec::state_bytes(const StateSize& size, DType dtype) const {
  const bool ring = window > 0 && !size.all_positions;
  return {.per_position = key_channels() * static_cast<int64_t>(size_of(dtype)),
          .positions = ring ? std::min(size.positions, 2 * window) : size.positions};
}

ContextUse AttentionSpec::context_use(ContextExchange exchange, int64_t tensor, int64_t context) const {
  ContextUse use;
  use.exchanges_channels = exchanges_heads(exchange, *this, tensor, context);
  const auto ranks = static_cast<double>(tensor), parts = static_cast<double>(context);
  if (!use.exchanges_channels) {
    use.ring_channels = static_cast<double>(key_channels()) / ranks;
    use.work = window > 0 ? ContextWork::none : ContextWork::alternate;
    return use;
  }
  const double groups = std::max(static_cast<double>(num_query_groups) / ranks, parts);  // several ranks may share one
  use.exchanged_channels =
      (static_cast<double>(query_channels()) / ranks + groups * static_cast<double>(qk_head_dim + v_head_dim)) / parts;
  return use;
}

bool AttentionSpec::context_ranks_divide(int64_t tensor, int64_t context) const {
  return ranks_divide_heads(*this, tensor, context);
}

int64_t AttentionSpec::most_context_ranks(int64_t tensor) const {
  return std::max<int64_t>(num_attention_heads / tensor, 1);
}

std::string AttentionSpec::context_parts(int64_t tensor) const {
  return counted(num_attention_heads / tensor, "head");
}

const kernels::RopeArgs* AttentionSpec::shared_rotation(bool /*generation*/) const {
  return rope.dims > 0 ? &rope : nullptr;
}

bool ranks_divide_heads(const AttentionSpec& spec, int64_t tensor, int64_t context) {
  const int64_t heads = spec.num_attention_heads / tensor,
                groups = std::max<int64_t>(spec.num_query_groups / tensor, 1);
  return heads % context == 0 && (groups % context == 0 || context % groups == 0);
}

bool exchanges_heads(ContextExchange exchange, const AttentionSpec& spec, int64_t tensor, int64_t context) {
  if (context == 1 || exchange == ContextExchange::ring) return false;
  return exchange == ContextExchange::heads || ranks_divide_heads(spec, tensor, context);
}

}  // namespace witan
