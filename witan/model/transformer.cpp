#include "witan/model/transformer.h"

#include <cmath>

#include "witan/ops/elementwise.h"
#include "witan/ops/redistribute.h"
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
  builder.expert_tensor_ranks = ModelAxes::size(axes.expert_tensor);
  builder.expert_tensor_rank = ModelAxes::rank(axes.expert_tensor);
  if (ModelAxes::size(axes.tensor) > 1)
    builder.tensor.emplace(*axes.tensor, axes.sequence_parallel ? Placement::shard(1) : Placement::replicate());
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
      tensor_(builder.tensor),
      loss_parallel_(axes.loss_parallel),
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
    head_ = std::make_unique<Linear>(builder / "head", config.hidden_size, config.vocab_size, config.init_method_std,
                                     Bias::none, Divided::out());
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
  out.logits = head(tape, x);
  if (tensor_ && !loss_parallel_)
    out.logits =
        ops::redistribute(tape, std::move(out.logits), tensor_->group, Placement::shard(1), Placement::replicate());
  return out;
}

Var Transformer::embed(Tape& tape, const ModelInput& input) {
  Var rows = embedding_.forward(tape, input.tokens);
  if (position_embedding_) rows = add_positions(tape, rows, input);
  return tensor_ ? from_divided_layer(tape, std::move(rows), *tensor_) : rows;
}

Var Transformer::add_positions(Tape& tape, const Var& rows, const ModelInput& input) {
  require<ShapeError>(input.tokens.size(1) <= *most_positions(), "transformer: ", input.tokens.size(1),
                      " tokens in a row, but max_position_embeddings = ", *most_positions());
  return ops::add(tape, rows, position_embedding_->forward(tape, input.where.positions));
}

Var Transformer::head(Tape& tape, const Residual& x) {
  const Var normed = final_norm_.forward_sum(tape, x.x, x.added, config_.recompute() != Recompute::none).normed;
  const Var whole = tensor_ ? to_divided_layer(tape, normed, *tensor_) : normed;
  const auto [T, D] = whole.shape().as_rows();
  const Var rows = ops::reshape(tape, whole, {T, D});
  return head_ ? head_->forward(tape, rows) : embedding_.logits(tape, rows);
}

ops::CrossEntropy Transformer::loss(Tape& tape, Var logits, const Tensor& targets, const Tensor& weights,
                                    ops::LossGradient gradient) {
  if (!tensor_ || !loss_parallel_) return ops::cross_entropy(tape, std::move(logits), targets, weights, gradient);
  const ops::VocabularyPart part{tensor_->group.rank() * logits.size(1), config_.vocab_size};
  return ops::cross_entropy(tape, std::move(logits), targets, weights, part, tensor_->group, gradient);
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
