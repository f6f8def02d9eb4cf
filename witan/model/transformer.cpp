#include "witan/model/transformer.h"

#include <cmath>

#include "witan/ops/elementwise.h"
#include "witan/ops/view.h"

namespace witan {
namespace {

Builder root_builder(Stream& stream, const ModelConfig& config, uint64_t seed, const ModelAxes& axes) {
  config.validate();
  Builder builder{.stream = stream};
  builder.dtype = config.compute_dtype();
  builder.seed = seed;
  builder.init_std = config.init_method_std;
  builder.output_init_std = config.init_method_std / std::sqrt(2.0 * static_cast<double>(config.num_layers));
  builder.expert_ranks = axes.expert->size();
  builder.expert_rank = axes.expert->rank();
  if (config.init_method == "torch") builder.torch = std::make_shared<TorchRandom>(seed);
  return builder;
}

}  // namespace

Transformer::Transformer(Stream& stream, const ModelConfig& config, uint64_t seed, const ModelAxes& axes)
    : Transformer(root_builder(stream, config, seed, axes), config, axes) {}

// Members are built in the order in which a PyTorch program draws them: init_method = torch relies on it.
Transformer::Transformer(const Builder& builder, const ModelConfig& config, const ModelAxes& axes)
    : Module(""),
      config_(config),
      embedding_(builder / "embedding", config.vocab_size, config.hidden_size),
      embedding_dropout_(builder / "embedding_dropout", config.hidden_dropout),
      final_norm_(builder / "final_norm", config.norm, config.hidden_size) {
  const int64_t experts = config.moe.num_experts;
  require<ConfigError>(experts == 0 || experts % axes.expert->size() == 0, "num_experts = ", experts,
                       " cannot be dealt out to ", axes.expert->size(), " ranks evenly");
  add_child(embedding_);
  if (const auto positions = most_positions()) {
    position_embedding_ = std::make_unique<Embedding>(builder / "position_embedding", *positions, config.hidden_size);
    add_child(*position_embedding_);
  }
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    blocks_.push_back(std::make_unique<Block>(builder / "layers" / std::to_string(layer), config, layer, axes));
    add_child(*blocks_.back());
  }
  add_child(final_norm_);
  if (config.untie_embeddings_and_output_weights) {
    head_ = std::make_unique<Linear>(builder / "head", config.hidden_size, config.vocab_size, config.init_method_std);
    add_child(*head_);
  }
}

ModelOutput Transformer::forward(Tape& tape, const ModelInput& input) {
  const ModuleScope scope(tape, *this);
  ModelOutput out;
  Positions where = input.where;
  if (!config_.add_bias_linear)  // with biases, heads are projected one by one, each with angles of its own
    where.angles = rotary_angles(tape.stream(), where.positions, config_.attention.rope(config_.hidden_size),
                                 accumulator(config_.compute_dtype()));
  Residual x = {embedding_dropout_.forward(tape, embed(tape, input), input.randomness), {}};  // [B, S, D]
  for (const auto& block : blocks_) {
    BlockOutput next = block->forward(tape, std::move(x), where, input.randomness);
    x = std::move(next.x);
    if (!block->is_moe()) continue;
    out.balance_losses.push_back(next.balance_loss);
    out.z_losses.push_back(next.z_loss);
    out.expert_counts.push_back(next.expert_counts);
  }
  const auto rows = [&](const Var& part) {
    const auto [T, D] = part.shape().as_rows();
    return ops::reshape(tape, part, {T, D});
  };
  out.logits = head(tape, {rows(x.x), x.added.defined() ? rows(x.added) : Var()});
  return out;
}

Var Transformer::embed(Tape& tape, const ModelInput& input) {
  const Var tokens = embedding_.forward(tape, input.tokens);
  if (!position_embedding_) return tokens;
  require<ShapeError>(input.tokens.size(1) <= *most_positions(), "transformer: ", input.tokens.size(1),
                      " tokens in a row, but max_position_embeddings = ", *most_positions());
  return ops::add(tape, tokens, position_embedding_->forward(tape, input.where.positions));
}

Var Transformer::head(Tape& tape, const Residual& x) {
  const Var normed = final_norm_.forward_sum(tape, x.x, x.added, config_.recompute() != Recompute::none).normed;
  return head_ ? head_->forward(tape, normed) : embedding_.logits(tape, normed);
}

Tensor Transformer::decode(Stream& stream, const ModelInput& input, std::vector<KvCache>& caches) {
  Tape tape(stream, Tape::Mode::off);
  Var x = embed(tape, input);  // [B, S, D]
  for (size_t layer = 0; layer < blocks_.size(); ++layer)
    x = blocks_[layer]->decode(tape, x, input.where, caches[layer]);
  const int64_t B = x.size(0), S = x.size(1), D = x.size(2);
  require<ShapeError>(B == 1, "decode: one sequence at a time, got ", B);
  const Tensor last = x.value().reshape({S, D}).narrow(0, S - 1, 1);
  return head(tape, {tape.constant(last), {}}).value();
}

std::optional<int64_t> Transformer::most_positions() const {
  const AttentionConfig& attention = config_.attention;
  return attention.learned_positions() ? std::optional(attention.max_position_embeddings) : std::nullopt;
}

std::vector<KvCache> Transformer::make_caches(Stream& stream, int64_t batch, int64_t positions) const {
  std::vector<KvCache> caches;
  for (const auto& block : blocks_)
    caches.push_back(block->attention().make_cache(stream, batch, positions, config_.compute_dtype()));
  return caches;
}

}  // namespace witan
