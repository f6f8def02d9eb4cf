#include "witan/nn/layers.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "witan/autograd/recompute.h"
#include "witan/base/numbers/rng.h"
#include "witan/ops/linear/linear.h"
#include "witan/ops/pointwise/elementwise.h"
#include "witan/ops/vocabulary/vocabulary.h"

namespace witan {

Fields NormConfig::fields() {
  return {
      Field{"normalization", &normalization, "Normalization before attention and MLP, and after the last layer"}.one_of(
          {"RMSNorm", "LayerNorm"}),
      Field{"norm_epsilon", &norm_epsilon, "Epsilon added to the variance"}.above(0),
      Field{"norm_weight", &norm_weight, "Give norms a learned weight"},
      Field{"norm_bias", &norm_bias, "Give LayerNorm a bias"},
      Field{"apply_layernorm_1p", &apply_layernorm_1p,
            "Scale rows by 1 + weight in norms, whose weights begin at zero, as in Qwen3-Next and Qwen3.5"},
  };
}

void NormConfig::validate() const {
  require<ConfigError>(!norm_bias || normalization == "LayerNorm",
                       "norm_bias = true: RMSNorm has no bias; use normalization = \"LayerNorm\" or drop norm_bias");
  require<ConfigError>(!norm_bias || norm_weight,
                       "norm_weight = false and norm_bias = true: a norm without a weight has no bias; set norm_bias = "
                       "false");
  require<ConfigError>(
      !apply_layernorm_1p || norm_weight,
      "norm_weight = false and apply_layernorm_1p = true: norms have no weight that 1 is added to; set "
      "apply_layernorm_1p = false");
}

Norm::Norm(const Builder& builder, const NormConfig& config, int64_t width, bool sharded)
    : Module(builder.path),
      config_(config),
      sums_over_(sharded && builder.tensor_ranks() > 1 ? &builder.tensor->group : nullptr) {
  assert(!sharded || config.normalization == "RMSNorm");
  if (config.norm_weight)
    weight_ = &add_parameter(builder.of_kind(ParameterKind::norms), "weight", {width},
                             {config.apply_layernorm_1p ? Initialization::Kind::zeros : Initialization::Kind::ones},
                             false, sharded ? TensorSplit{0} : TensorSplit{});
  if (config.norm_bias)
    bias_ =
        &add_parameter(builder.of_kind(ParameterKind::norms), "bias", {width}, {Initialization::Kind::zeros}, false);
}

Var Norm::weight(Tape& tape) {
  return weight_ ? tape.parameter(*weight_) : Var();
}

Var Norm::forward(Tape& tape, const Var& x, bool rematerialise) {
  const ModuleScope scope(tape, *this);
  const auto normalise = [config = config_, group = sums_over_](Tape& on, const std::vector<Var>& in) {
    const Var w = in.size() > 1 ? in[1] : Var(), b = in.size() > 2 ? in[2] : Var();
    const bool centered = config.apply_layernorm_1p;
    if (group != nullptr) return ops::sharded_rmsnorm(on, in[0], w, config.norm_epsilon, *group, centered);
    if (config.normalization == "RMSNorm") return ops::rmsnorm(on, in[0], w, config.norm_epsilon, centered);
    return ops::layernorm(on, in[0], w, b, config.norm_epsilon, centered);
  };
  std::vector<Var> inputs = {x};
  if (weight_) inputs.push_back(weight(tape));
  if (bias_) inputs.push_back(tape.parameter(*bias_));
  return rematerialise ? rematerialised(tape, inputs, normalise) : normalise(tape, inputs);
}

ops::SumAndNorm Norm::forward_sum(Tape& tape, const Var& a, const Var& b, bool rematerialise) {
  if (!b.defined()) return {a, forward(tape, a, rematerialise)};
  if (!rematerialise) {
    const ModuleScope scope(tape, *this);
    const double epsilon = config_.norm_epsilon;
    const bool centered = config_.apply_layernorm_1p;
    if (config_.normalization == "RMSNorm") return ops::add_rmsnorm(tape, a, b, weight(tape), epsilon, centered);
    return ops::add_layernorm(tape, a, b, weight(tape), bias_ ? tape.parameter(*bias_) : Var(), epsilon, centered);
  }
  const Var sum = ops::add(tape, a, b);
  return {sum, forward(tape, sum, rematerialise)};
}

namespace {

std::optional<TensorAxis> axis_of_tokens(const Builder& builder) {
  if (builder.tensor && builder.tensor->residual.kind == Placement::Kind::shard) return builder.tensor;
  return std::nullopt;
}

}  // namespace

Dropout::Dropout(const Builder& builder, double p)
    : p_(p), site_(Philox::stream_of(builder.path)), divides_tokens_(axis_of_tokens(builder)) {}

kernels::DroppedPart part_of(const Randomness& randomness, int64_t positions, int64_t token_elements,
                             const TensorAxis* divides_tokens) {
  const int64_t ranks = divides_tokens ? divides_tokens->group.size() : 1;
  const int64_t here = divides_tokens ? divides_tokens->group.rank() * positions : 0;
  const int64_t whole = std::max(randomness.sequence_length > 0 ? randomness.sequence_length : ranks * positions,
                                 randomness.counted_positions);
  if (whole <= positions) return {};
  return {positions * token_elements, whole * token_elements,
          randomness.positions.from(here).of_elements(token_elements)};
}

Var Dropout::forward(Tape& tape, const Var& x, const Randomness& randomness) const {
  kernels::Dropout how = drawn_from(randomness);
  const bool part = divides_tokens_ || randomness.sequence_length > 0 || randomness.counted_positions > 0;
  if (how.on() && part) {  // x [B, S, D]
    const int64_t own = x.size(1), of_token = x.shape().elements() / (x.size(0) * own);
    Randomness here = randomness;
    if (own * of_token % 4 != 0) here.counted_positions = 0;  // a row is not made of whole blocks of Philox's words
    how.part = part_of(here, own, of_token, divides_tokens_ ? &*divides_tokens_ : nullptr);
  }
  return ops::dropout(tape, x, how);
}

kernels::Dropout Dropout::drawn_from(const Randomness& randomness) const {
  if (p_ == 0 || !randomness.step.defined()) return {};
  return {p_, randomness.seed, randomness.step, randomness.micro_batch, site_};
}

EmbeddingNoise::EmbeddingNoise(const Builder& builder, double alpha)
    : alpha_(alpha), site_(Philox::stream_of(builder.path)), divides_tokens_(axis_of_tokens(builder)) {}

Var EmbeddingNoise::forward(Tape& tape, const Var& x, const Randomness& randomness) const {
  if (alpha_ == 0 || !randomness.step.defined()) return x;
  kernels::Dropout where{0, randomness.seed, randomness.step, randomness.micro_batch, site_};
  where.part = part_of(randomness, x.size(1), x.size(2), divides_tokens_ ? &*divides_tokens_ : nullptr);
  const int64_t ranks = divides_tokens_ ? divides_tokens_->group.size() : 1;
  const int64_t length = randomness.sequence_length > 0 ? randomness.sequence_length : ranks * x.size(1);
  return ops::jitter(tape, x, where, {alpha_ / std::sqrt(static_cast<double>(length * x.size(2))), true});
}

namespace {

TensorSplit split_of_table(Embedding::Divided divided) {
  return divided == Embedding::Divided::entries ? TensorSplit{.dim = 0, .uneven = true} : TensorSplit{.dim = 1};
}

}  // namespace

Embedding::Embedding(const Builder& builder, int64_t size, int64_t width, int64_t padding, Divided divided)
    : Module(builder.path),
      part_{divided == Divided::channels
                ? 0
                : nearly_equal_piece(size + padding, builder.tensor_ranks(), builder.tensor_rank()).begin,
            size, padding},
      weight_(add_parameter(builder.of_kind(ParameterKind::embeddings), "weight", {size + padding, width},
                            Initialization::padded(builder.embedding_init(), padding * width), true,
                            split_of_table(divided))) {}

Var Embedding::forward(Tape& tape, const Tensor& ids, Place place) {
  const ModuleScope scope(tape, *this);
  Leaf& leaf = place == Place::behind_layers ? weight_.as_head() : weight_;
  return ops::embedding(tape, ids, tape.parameter(leaf), part_);
}

Var Embedding::logits(Tape& tape, const Var& x) {
  return ops::linear(tape, x, tape.parameter(weight_.as_head()), {});
}

}  // namespace witan
