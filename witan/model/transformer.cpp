#include "witan/model/transformer.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>

#include "witan/kernels/vocabulary/vocabulary.h"
#include "witan/model/config.h"
#include "witan/model/frozen.h"
#include "witan/model/lanes.h"
#include "witan/nn/attention/attention.h"
#include "witan/nn/lora.h"
#include "witan/ops/fp8/fp8_quantiser.h"
#include "witan/ops/pointwise/elementwise.h"
#include "witan/ops/shape/redistribute.h"
#include "witan/ops/shape/shape.h"

namespace witan {
namespace {

std::shared_ptr<const ops::Fp8Recipe> fp8_recipe(const ModelConfig& config) {
  if (!config.fp8()) return nullptr;
  using Scales = ops::Fp8Recipe::Scales;
  const bool delayed = config.fp8_recipe == "delayed";
  return std::make_shared<const ops::Fp8Recipe>(
      ops::Fp8Recipe{.scales = delayed                             ? Scales::delayed
                               : config.fp8_recipe == "tensorwise" ? Scales::tensorwise
                                                                   : Scales::blockwise,
                     .gradients = config.fp8_format == "hybrid" ? kernels::Fp8Format::e5m2 : kernels::Fp8Format::e4m3,
                     .history = config.fp8_amax_compute_algo == "max" ? config.fp8_amax_history_len : 1,
                     .factor = std::ldexp(1.0, static_cast<int>(config.fp8_margin))});
}

Builder root_builder(Stream& stream, const ModelConfig& config, uint64_t seed, const ModelAxes& axes) {
  config.validate();
  Builder builder{.stream = stream};
  builder.dtype = config.compute_dtype();
  builder.seed = seed;
  builder.init_std = config.init_method_std;
  builder.output_init_std = config.init_method_std / std::sqrt(2.0 * static_cast<double>(config.num_layers));
  if (config.init_method == "fan_in") builder.fan_in_std = config.init_method_std;
  builder.expert_ranks = axes.expert->size();
  builder.expert_rank = axes.expert->rank();
  builder.expert_tensor_ranks = ModelAxes::size(axes.expert_tensor);
  builder.expert_tensor_rank = ModelAxes::rank(axes.expert_tensor);
  if (ModelAxes::size(axes.tensor) > 1)
    builder.tensor.emplace(*axes.tensor, axes.sequence_parallel ? Placement::shard(1) : Placement::replicate(),
                           axes.tensor_overlap ? TensorAxis::Keeps::all : TensorAxis::Keeps::own);
  builder.values_later = axes.values_later;
  builder.lora = lora_of(config);
  builder.fp8 = fp8_recipe(config);
  builder.fp8_rounds = axes.fp8_rounds;
  if (const Freeze freeze(config); freeze.any())
    builder.frozen = [freeze](const ParameterSpec& spec) { return freeze.takes(spec); };
  if (keeps_codes(config)) {
    const Freeze freeze(config);
    builder.format = [freeze](const ParameterSpec& spec) { return freeze.format(spec); };
    builder.matrices_in_codes = freeze.matrices_in_codes();
  }
  if (config.init_method == "torch") builder.torch = std::make_shared<TorchRandom>(seed);
  return builder;
}

TokenSource source_of(const ModelInput& input, const Tensor& tokens) {
  return {tokens, input.randomness, input.padded ? input.where.sequence_ids : Tensor()};
}

// Numbers of the units.
constexpr int kEmbeddingUnit = 0;
constexpr int unit_of_layer(int64_t layer) {
  return kEmbeddingUnit + 1 + static_cast<int>(layer);
}
int head_unit(const ModelConfig& config) {
  return unit_of_layer(config.num_layers);
}
int mtp_unit(const ModelConfig& config, int64_t module) {
  return head_unit(config) + 1 + static_cast<int>(module);
}

}  // namespace

Transformer::Transformer(Stream& stream, const ModelConfig& config, uint64_t seed, const ModelAxes& axes)
    : Transformer(stream, config, seed, axes, StageLayers::all(config.num_layers)) {}

Transformer::Transformer(Stream& stream, const ModelConfig& config, uint64_t seed, const ModelAxes& axes,
                         const StageLayers& stage)
    : Transformer(root_builder(stream, config, seed, axes), config, axes, stage) {}

// Members are built in the order in which a PyTorch program draws them, on which init_method = torch relies.
Transformer::Transformer(const Builder& builder, const ModelConfig& config, const ModelAxes& axes,
                         const StageLayers& stage)
    : Module(""),
      config_(config),
      layers_(config.layers()),
      tensor_(builder.tensor),
      loss_parallel_(axes.loss_parallel),
      embedding_noise_(builder / "embedding_noise", config.neftune_noise_alpha),
      embedding_dropout_(builder / "embedding_dropout", config.hidden_dropout),
      last_(stage.last) {
  const auto exchanges = [&](const LayerSpec& layer) {
    return mixer_kind(layer.mixer)
        .context_use(axes.context_exchange, builder.tensor_ranks(), ModelAxes::size(axes.context))
        .exchanges_channels;
  };
  if (std::ranges::any_of(layers_, exchanges)) exchanges_channels_ = axes.context;
  const int64_t experts = config.moe.num_experts, hidden = config.hidden_size;
  require<ConfigError>(experts == 0 || experts % axes.expert->size() == 0, "num_experts = ", experts,
                       " is not divisible by ", axes.expert->size(), " expert-parallel ranks");
  const int64_t padding = config.padded_vocab_size() - config.vocab_size;
  for (int rank = 0; rank <= builder.tensor_ranks(); ++rank)
    columns_.push_back(nearly_equal_piece(config.padded_vocab_size(), builder.tensor_ranks(), rank).begin);
  const bool untied = config.untie_embeddings_and_output_weights;
  Builder in_last = builder.in_chunk(stage.count() - 1).in_unit(head_unit(config));
  for (std::optional<TensorAxis>* axis : {&tensor_, &in_last.tensor})  // lanes end with the layers
    if (*axis) (*axis)->keeps = TensorAxis::Keeps::own;
  // The last stage has a copy of the embedding for a tied head and for MTP modules.
  const Builder of_embedding = (stage.first ? builder : in_last).in_unit(kEmbeddingUnit) / "embedding";
  const bool in_last_stage = !untied || config.mtp_num_layers > 0;
  embedding_ = build<Embedding>(stage.first || (stage.last && in_last_stage),
                                in_last_stage ? of_embedding.tied_embedding(!stage.first) : of_embedding,
                                config.vocab_size, hidden, padding);
  if (config.attention.learned_positions())
    position_embedding_ = build<Embedding>(stage.first, builder.in_unit(kEmbeddingUnit) / "position_embedding",
                                           config.attention.max_position_embeddings, hidden);
  build_value_embeddings(builder, stage);
  if (config.embedding_norm)
    embedding_norm_ = build<Norm>(stage.first, builder.in_unit(kEmbeddingUnit) / "embedding_norm", config.norm, hidden);
  if (config.hidden_size_per_layer_input > 0)
    per_layer_inputs_ = build<PerLayerInputs>(true, builder.in_unit(kEmbeddingUnit), config);
  build_layers(builder, axes, stage);
  if (config.streams.any())
    head_streams_ = build<HyperConnection>(stage.last, in_last / "head_hc", config.streams, hidden,
                                           HyperConnection::Place::head, config.norm.norm_epsilon);
  final_norm_ = build<Norm>(stage.last, in_last / "final_norm", config.norm, hidden);
  if (untied)
    head_ = build<Linear>(stage.last, (in_last / "head").of_kind(ParameterKind::head), hidden,
                          config.padded_vocab_size(), config.init_method_std, Bias::none, Divided::vocabulary(padding));
  for (int64_t module = 0; stage.last && module < config.mtp_num_layers; ++module)
    mtp_.push_back(build<MtpModule>(true, in_last.in_unit(mtp_unit(config, module)) / "mtp" / std::to_string(module),
                                    config, layers_.back(), axes));
}

std::vector<Unit> Transformer::units() {
  std::vector<Unit> units;
  const auto add = [&](Unit unit, const std::vector<Module*>& modules) {
    for (Module* module : modules) {
      if (module == nullptr) continue;
      unit.modules.push_back(module);
      std::ranges::copy(module->parameters(), std::back_inserter(unit.parameters));
      std::ranges::copy(module->buffers(), std::back_inserter(unit.buffers));
    }
    if (unit.parameters.empty()) return;
    unit.number = unit.parameters.front()->spec().unit;
    unit.chunk = unit.parameters.front()->spec().chunk;
    units.push_back(std::move(unit));
  };
  std::vector<Module*> embeddings = {embedding_.get(), position_embedding_.get()};
  for (const auto& table : value_embeddings_) embeddings.push_back(table.get());
  embeddings.insert(embeddings.end(), {embedding_norm_.get(), per_layer_inputs_.get()});
  add({Unit::Kind::embedding, 0, "embedding", 0}, embeddings);
  for (const Chunk& chunk : chunks_)
    for (const auto& block : chunk) add({Unit::Kind::block, 0, block->path(), 0}, {block.get()});
  add({Unit::Kind::head, 0, "head", 0}, {head_streams_.get(), final_norm_.get(), head_.get()});
  for (const auto& module : mtp_) add({Unit::Kind::block, 0, module->path(), 0}, {module.get()});
  assert(parameters_of(units) == parameters());
  return units;
}

template <class Use>
void Transformer::for_each_block(const Use& use) const {
  for (size_t chunk = 0; chunk < chunks_.size(); ++chunk)
    for (size_t i = 0; i < chunks_[chunk].size(); ++i) {
      Block& block = *chunks_[chunk][i];
      use(block, block, numbers_[chunk][i]);
    }
  for (size_t module = 0; module < mtp_.size(); ++module)
    use(*mtp_[module], mtp_[module]->block(), config_.num_layers + static_cast<int64_t>(module));
}

void Transformer::attach(const ModelServices& services) {
  if (services.units) units_ = services.units;
  if (services.tensor_side) tensor_side_ = services.tensor_side;
  ModelServices numbered = services;
  for_each_block([&](Module& module, const Block& block, int64_t layer) {
    numbered.layer = layer;
    numbered.last = layer + 1 == config_.num_layers;
    numbered.offload = layer < config_.num_layers ? services.offload : nullptr;
    module.attach(numbered);
    if (block.is_moe()) ++numbered.router;
  });
}

int64_t Transformer::routers() const {
  int64_t count = 0;
  for_each_block([&](const Module&, const Block& block, int64_t) { count += block.is_moe() ? 1 : 0; });
  return count;
}

std::vector<std::pair<int64_t, TokenMixer*>> Transformer::mixers() {
  std::vector<std::pair<int64_t, TokenMixer*>> all;
  for_each_block([&](const Module&, Block& block, int64_t layer) {
    if (TokenMixer* mixer = block.mixer()) all.emplace_back(layer, mixer);
  });
  return all;
}

// A child of this stage; null if another stage holds it. With PyTorch's initialization it is built all the same, since
// one generator draws the numbers of all children in order.
template <class Part, class... Args>
std::unique_ptr<Part> Transformer::build(bool held, const Builder& builder, const Args&... args) {
  if (!held && !builder.torch) return nullptr;
  auto part = std::make_unique<Part>(builder, args...);
  if (!held) return nullptr;
  add_child(*part);
  return part;
}

// Tensor-parallel ranks divide the channels of value embeddings, as they divide those of values.
void Transformer::build_value_embeddings(const Builder& builder, const StageLayers& stage) {
  require<ConfigError>(
      !config_.joins_layers() || (stage.first && stage.last && stage.count() == 1),
      "value_embedding_freq, skip_connections, embedding_residual and hidden_size_per_layer_input join layers that a "
      "pipeline puts on different ranks; set pipeline_model_parallel_size = 1");
  const int64_t padding = config_.padded_vocab_size() - config_.vocab_size;
  const int64_t channels = config_.attention.num_query_groups * config_.attention.value_head_dim(config_.hidden_size);
  for (int64_t table = 1; table <= config_.value_embedding_tables(); ++table)
    value_embeddings_.push_back(
        build<Embedding>(true, builder.in_unit(kEmbeddingUnit) / ("value_embedding_" + std::to_string(table)),
                         config_.vocab_size, channels, padding, Embedding::Divided::channels));
}

void Transformer::build_layers(const Builder& builder, const ModelAxes& axes, const StageLayers& stage) {
  chunks_.resize(stage.chunks.size());
  numbers_.resize(chunks_.size());
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    const auto chunk = std::ranges::find_if(stage.chunks, [&](const LayerRange& of) { return of.contains(layer); });
    const auto number = chunk - stage.chunks.begin();
    const bool held = chunk != stage.chunks.end();
    Builder here = builder.in_chunk(static_cast<int>(number)).in_unit(unit_of_layer(layer));
    if (!config_.fp8(layer)) here.fp8 = nullptr;
    if (held) check_keys(layer, *chunk);
    auto block =
        build<Block>(held, here / "layers" / std::to_string(layer), config_, layers_[static_cast<size_t>(layer)], axes);
    if (!held) continue;
    chunks_[static_cast<size_t>(number)].push_back(std::move(block));
    numbers_[static_cast<size_t>(number)].push_back(layer);
  }
}

void Transformer::check_keys(int64_t layer, const LayerRange& chunk) const {
  if (const auto* const heads = std::get_if<MultiHeadSpec>(&layers_[static_cast<size_t>(layer)].mixer);
      heads != nullptr && heads->sharing)
    require<ConfigError>(chunk.contains(heads->sharing->of), "num_kv_shared_layers = ", config_.num_kv_shared_layers,
                         ": layer ", layer, " attends to keys and values of layer ", heads->sharing->of,
                         ", which is in another pipeline stage: let one stage, and one virtual one, have all of these "
                         "layers, or set pipeline_model_parallel_size = 1");
  const auto* const latent = std::get_if<LatentSpec>(&layers_[static_cast<size_t>(layer)].mixer);
  if (latent == nullptr || !latent->indexer.any()) return;
  require<ConfigError>(chunk.contains(latent->indexer.from), "dsa_indexer_freq: layer ", layer,
                       " uses the choice of layer ", latent->indexer.from,
                       ", which is in another pipeline stage: let each stage, and each virtual one, begin with a layer "
                       "that has an indexer, or set pipeline_model_parallel_size = 1");
}

ModelOutput Transformer::forward(Tape& tape, const ModelInput& input, int chunk, Var x) {
  const ModuleScope scope(tape, *this);
  const PassGuard pass(tape, units_);
  ModelOutput out;
  const Positions where = with_shared(tape.stream(), input.where);
  Embedded embedded;
  if (!x.defined()) {
    embedded = embed(tape, input);
    const Var noisy = embedding_noise_.forward(tape, std::move(embedded.x), input.randomness);
    x = to_streams(tape, embedding_dropout_.forward(tape, noisy, input.randomness));
  }
  const TokenSource source = source_of(input, input.tokens);
  const auto took = [&](const Block& block, BlockOutput next) {
    if (block.is_moe()) out.routers.push_back(std::move(next.router));
    return std::move(next.x);
  };
  const auto run = [&](Block& block, const BlockInputs& beside, Residual in) {
    return took(block, block.forward(tape, std::move(in), beside, where, source, input.dropping));
  };
  const auto experts = [&](Block& block, const Residual& in) {
    return took(block, block.apply_moe(tape, in, source, input.dropping));
  };
  const Chunk& blocks = chunks_[static_cast<size_t>(chunk)];
  const bool lanes = tensor_side_ != nullptr && x.size(0) % 2 == 0 && !blocks.empty();
  const Residual residual = lanes ? through_in_lanes(tape, *tensor_side_, blocks, {std::move(x), {}}, where, experts)
                                  : through(tape, blocks, {std::move(x), {}}, std::move(embedded), run);  // [B, S, D]
  if (!last_ || chunk + 1 < chunks()) {
    out.x = residual.sum(tape);
    return out;
  }
  if (input.ahead.empty()) {
    out.logits = gathered(tape, head(tape, residual));
    return out;
  }
  Var h;
  out.logits = gathered(tape, head(tape, Residual(std::move(residual)), &h));
  predict_ahead(tape, input, where, std::move(h), out);
  return out;
}

Var Transformer::gathered(Tape& tape, Var logits) {
  return tensor_ && !loss_parallel_ ? ops::gather_columns(tape, logits, tensor_->group, columns_) : logits;
}

// Each module reads the normalised output of the one before it, as in Megatron-LM.
void Transformer::predict_ahead(Tape& tape, const ModelInput& input, const Positions& where, Var h, ModelOutput& out) {
  require<ShapeError>(input.ahead.size() == mtp_.size(), "transformer: ", mtp_.size(),
                      " modules of multi-token prediction, and tokens ahead for ", input.ahead.size());
  for (size_t module = 0; module < mtp_.size(); ++module) {
    const AheadInput& ahead = input.ahead[module];
    const Var rows = mtp_[module]->embedding_dropout().forward(tape, embed_ahead(tape, ahead), input.randomness);
    MtpModule::Output next =
        mtp_[module]->forward(tape, rows, h, where, source_of(input, ahead.tokens), input.dropping);
    if (mtp_[module]->block().is_moe()) out.routers.push_back(std::move(next.router));
    h = std::move(next.h);
    std::optional<UnitGuard> unit;
    if (head_) unit.emplace(tape, units_, head_unit(config_));
    out.ahead.push_back(gathered(tape, logits(tape, h)));
  }
}

template <class Run>
Residual Transformer::through(Tape& tape, const Chunk& chunk, Residual x, Embedded embedded, const Run& run) {
  if (!config_.joins_layers()) {
    for (const auto& block : chunk) x = run(*block, BlockInputs(), std::move(x));
    return x;
  }
  const Var embedding = config_.embedding_residual ? x.x : Var();
  std::vector<Var> outputs(layers_.size());  // kept until the later layer that reads them
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const LayerSpec& spec = layers_[layer];
    BlockInputs beside;
    if (spec.embedding_residual) beside.embedding = embedding;
    if (spec.skip_from) beside.skip = std::move(outputs[static_cast<size_t>(*spec.skip_from)]);
    if (const int64_t table = mixer_kind(spec.mixer).value_embedding(); table > 0)
      beside.values = embedded.values[static_cast<size_t>(table - 1)];
    if (!embedded.own.empty()) beside.own = std::move(embedded.own[layer]);
    x = run(*chunk[layer], beside, std::move(x));
    if (!config_.skip_connections || layer >= layers_.size() / 2) continue;
    x = {x.sum(tape), {}};
    outputs[layer] = x.x;
  }
  return x;
}

Positions Transformer::with_shared(Stream& stream, const Positions& where) const {
  Positions with = where;
  with.tables = rotary_tables(stream, where);
  with.chosen = chosen_keys();
  with.lent = lent_heads();
  if (exchanges_channels_ != nullptr && where.sequence_ids.defined() && !where.hints.one_sequence_per_row)
    with.whole_ids = gather_sequence_ids(stream, where.sequence_ids, *exchanges_channels_);
  return with;
}

std::shared_ptr<ChosenKeys> Transformer::chosen_keys() const {
  const auto lends = [](const LayerSpec& layer) {
    const auto* const latent = std::get_if<LatentSpec>(&layer.mixer);
    return latent != nullptr && latent->indexer.lends;
  };
  return std::ranges::any_of(layers_, lends) ? std::make_shared<ChosenKeys>() : nullptr;
}

std::shared_ptr<LentHeads> Transformer::lent_heads() const {
  return config_.num_kv_shared_layers > 0 ? std::make_shared<LentHeads>() : nullptr;
}

// One table for each kind of rotation among the layers. With biases, queries and keys are projected separately, and
// make their own tables.
std::vector<RotaryTable> Transformer::rotary_tables(Stream& stream, const Positions& where, bool generation) const {
  Positions known = where;
  if (config_.add_bias_linear) return known.tables;
  for (const LayerSpec& layer : layers_) {
    const kernels::RopeArgs* const rope = mixer_kind(layer.mixer).shared_rotation(generation);
    if (rope == nullptr || std::ranges::find(known.tables, *rope, &RotaryTable::rope) != known.tables.end()) continue;
    known.tables.push_back({*rope, rotary_angles(stream, known, *rope, accumulator(config_.compute_dtype()))});
  }
  return known.tables;
}

Transformer::Embedded Transformer::embed(Tape& tape, const ModelInput& input) {
  const UnitGuard unit(tape, units_, kEmbeddingUnit, UnitGuard::Backward::reads_nothing);
  Embedded out;
  for (const auto& table : value_embeddings_) out.values.push_back(table->forward(tape, input.tokens));
  if (most_positions()) check_length(input);
  Var rows;
  if (per_layer_inputs_) rows = per_layer_inputs_->rows(tape, input.tokens);
  out.x = embedded(tape, embedding_->forward(tape, input.tokens), input.where.positions);
  if (!per_layer_inputs_) return out;
  const UnitGuard projection(tape, units_, kEmbeddingUnit);  // its backward reads the weight
  out.own = per_layer_inputs_->forward(tape, rows, out.x, input.randomness);
  return out;
}

Var Transformer::embedded(Tape& tape, Var rows, const Tensor& positions) {
  if (config_.embedding_multiplier != 1) rows = ops::scale(tape, rows, config_.embedding_multiplier);
  if (position_embedding_) rows = ops::add(tape, rows, position_embedding_->forward(tape, positions));
  Var x = tensor_ ? from_sharded_layer(tape, std::move(rows), *tensor_) : std::move(rows);
  if (!embedding_norm_) return x;
  std::optional<UnitGuard> norm;  // its backward reads the weight
  if (config_.norm.norm_weight) norm.emplace(tape, units_, kEmbeddingUnit);
  return embedding_norm_->forward(tape, x, false);  // layers belong to other units, and could not normalise again
}

Var Transformer::to_streams(Tape& tape, Var x) const {
  return config_.streams.any() ? ops::copy_to_streams(tape, x, config_.streams.num_residual_streams) : x;
}

// Embeds tokens for an MTP module as for the first layer: with learned positions and the norm, if there are any.
Var Transformer::embed_ahead(Tape& tape, const AheadInput& input) {
  const UnitGuard unit(tape, units_, kEmbeddingUnit, UnitGuard::Backward::reads_nothing);
  return embedded(tape, embedding_->forward(tape, input.tokens, Embedding::Place::behind_layers), input.positions);
}

void Transformer::check_length(const ModelInput& input) const {
  const std::vector<kernels::CacheRun>& runs = input.where.cached.runs;
  int64_t longest = runs.empty() ? input.tokens.size(1) : 0;
  for (const kernels::CacheRun& run : runs) longest = std::max(longest, run.past + run.count);
  require<ShapeError>(longest <= *most_positions(), "transformer: ", longest, " tokens per sequence, but ",
                      config_.attention.most_positions_key(), " = ", *most_positions());
}

Var Transformer::head(Tape& tape, const Residual& x, Var* out) {
  std::optional<UnitGuard> unit;  // a tied head and a norm without a weight have no parameters in this unit
  if (head_ || head_streams_ || config_.norm.norm_weight) unit.emplace(tape, units_, head_unit(config_));
  // MTP modules, which read *out, belong to other units, and could not normalise again.
  const bool rematerialise = config_.recompute() != Recompute::none && out == nullptr;
  const Var normed = normed_for_head(tape, x, rematerialise);
  if (out != nullptr) *out = normed;
  return logits(tape, normed);
}

Var Transformer::normed_for_head(Tape& tape, const Residual& x, bool rematerialise) {
  if (head_streams_) return final_norm_->forward(tape, head_streams_->read(tape, x.x).y, rematerialise);
  return final_norm_->forward_sum(tape, x.x, x.added, rematerialise).normed;
}

Var Transformer::logits(Tape& tape, const Var& normed) {
  const Var whole = tensor_ ? to_sharded_layer(tape, normed, *tensor_) : normed;
  const auto [T, D] = whole.shape().as_rows();
  return logits_of_rows(tape, ops::reshape(tape, whole, {T, D}));
}

Var Transformer::logits_of_rows(Tape& tape, const Var& rows) {
  if (head_) return capped(tape, head_->forward(tape, rows));
  const UnitGuard tied(tape, units_, kEmbeddingUnit);
  return capped(tape, embedding_->logits(tape, rows));
}

Var Transformer::capped(Tape& tape, Var logits) const {
  if (config_.logit_soft_cap > 0)
    return ops::soft_cap(tape, std::move(logits), config_.logit_scale, config_.logit_soft_cap);
  return config_.logit_scale == 1 ? logits : ops::scale(tape, logits, config_.logit_scale);
}

ops::CrossEntropy Transformer::loss(Tape& tape, Var logits, const Tensor& targets, const Tensor& weights,
                                    ops::LossGradient gradient) {
  Group* const group = vocabulary_group();
  return ops::cross_entropy(tape, std::move(logits), targets, weights, vocabulary_part(), group, gradient);
}

ops::TokenLosses Transformer::token_losses(Tape& tape, Var logits, const Tensor& targets, const Tensor& weights) {
  return ops::token_losses(tape, std::move(logits), targets, weights, vocabulary_part(), vocabulary_group());
}

// The ranks that divide the logits by vocabulary; null: there are none.
Group* Transformer::vocabulary_group() const {
  return tensor_ && loss_parallel_ ? &tensor_->group : nullptr;
}

ops::VocabularyPart Transformer::vocabulary_part() const {
  Group* const group = vocabulary_group();
  const int64_t begin = group ? columns_[static_cast<size_t>(group->rank())] : 0;
  return {begin, config_.vocab_size, config_.padded_vocab_size() - config_.vocab_size};
}

ModelInput step_input(Stream& stream, std::vector<kernels::CacheRun> runs, std::span<const int32_t> tokens) {
  const auto T = static_cast<int64_t>(tokens.size());
  std::vector<int32_t> rows, positions;
  for (const kernels::CacheRun& run : runs)
    for (int64_t i = 0; i < run.count; ++i) {
      rows.push_back(static_cast<int32_t>(run.row));
      positions.push_back(static_cast<int32_t>(run.past + i));
    }
  assert(rows.size() == tokens.size());
  ModelInput input{stream.empty({1, T}, DType::i32), {stream.empty({1, T}, DType::i32), {}}};
  kernels::CacheTokens& cached = input.where.cached;
  cached = {std::move(runs), stream.empty({T}, DType::i32), input.where.positions.reshape({T})};
  stream.write(input.tokens, tokens.data());
  stream.write(cached.positions, positions.data());
  stream.write(cached.rows, rows.data());
  return input;
}

Residual Transformer::read(Stream& stream, const ModelInput& input, const SequenceStates& states, int chunk, Tensor x) {
  require<ShapeError>(input.tokens.size(0) == 1 && input.where.cached.rows.elements() == input.tokens.elements(),
                      "transformer: the tokens of a generation step must be [1, T], each with a row of the cache");
  require<ShapeError>(input.tokens.elements() % token_ranks() == 0, "transformer: ", input.tokens.elements(),
                      " tokens of a generation step do not divide by ", token_ranks(), " tensor-parallel ranks");
  Tape tape(stream, Tape::Mode::off);
  Positions where = input.where;
  where.chosen = chosen_keys();
  where.lent = lent_heads();
  where.tables = rotary_tables(stream, where, true);  // tables are small, and each kernel that is saved counts
  auto first = states.begin();
  for (int before = 0; before < chunk; ++before) first += std::ssize(chunks_[static_cast<size_t>(before)]);
  const int64_t first_layer = chunks_[static_cast<size_t>(chunk)].empty() ? 0 : numbers_[static_cast<size_t>(chunk)][0];
  auto state = first;
  const auto run = [&](Block& block, const BlockInputs& beside, Residual in) {
    const auto& sharing = block.sharing();
    const auto& its = sharing ? first[sharing->of - first_layer] : *state;
    ++state;
    return block.decode(tape, std::move(in), beside, input.tokens, where, its.get());
  };
  Embedded embedded;
  if (!x.defined()) embedded = embed(tape, input);
  Var begin = x.defined() ? tape.constant(std::move(x)) : to_streams(tape, std::move(embedded.x));
  Residual out = through(tape, chunks_[static_cast<size_t>(chunk)], {std::move(begin), {}}, std::move(embedded), run);
  const bool ends = last_ && chunk + 1 == chunks();
  return ends ? std::move(out) : Residual{out.sum(tape), {}};
}

int Transformer::token_ranks() const {
  return tensor_ && tensor_->residual.kind == Placement::Kind::shard ? tensor_->group.size() : 1;
}

Tensor Transformer::logits(Stream& stream, const Residual& x, std::span<const int32_t> tokens) {
  Tape tape(stream, Tape::Mode::off);
  const int64_t T = x.x.size(1) * token_ranks(), D = x.x.size(2), n = static_cast<int64_t>(tokens.size());
  Tensor ids;  // undefined if the tokens are adjacent
  const auto apart = [](int32_t token, int32_t next) { return next != token + 1; };
  if (std::ranges::adjacent_find(tokens, apart) != tokens.end()) {
    ids = stream.empty({n}, DType::i32);
    stream.write(ids, tokens.data());
  }
  const auto rows = [&](const Var& all) {
    if (!all.defined()) return Var();
    const Tensor table = (token_ranks() > 1 ? to_sharded_layer(tape, all, *tensor_) : all).value().reshape({T, D});
    if (!ids.defined()) return tape.constant(table.narrow(0, n > 0 ? tokens.front() : 0, n));
    const Tensor some = stream.empty({n, D}, table.dtype());
    kernels::embedding_forward(stream, some, ids, table);
    return tape.constant(some);
  };
  std::optional<UnitGuard> unit;
  if (head_ || head_streams_ || config_.norm.norm_weight) unit.emplace(tape, units_, head_unit(config_));
  return logits_of_rows(tape, normed_for_head(tape, {rows(x.x), rows(x.added)}, false)).value();
}

Tensor Transformer::whole_logits(Stream& stream, Tensor logits) {
  if (!tensor_) return logits;
  Tape tape(stream, Tape::Mode::off);
  return ops::gather_columns(tape, tape.constant(std::move(logits)), tensor_->group, columns_).value();
}

Tensor Transformer::decode(Stream& stream, const ModelInput& input, const SequenceStates& states) {
  std::vector<int32_t> last;
  int64_t tokens = 0;
  for (const kernels::CacheRun& run : input.where.cached.runs)
    last.push_back(static_cast<int32_t>((tokens += run.count) - 1));
  return logits(stream, read(stream, input, states), last);
}

std::optional<int64_t> Transformer::most_positions() const {
  return config_.attention.most_positions();
}

SequenceStates Transformer::make_states(Stream& stream, const StateSize& size) const {
  SequenceStates states;
  for (const Chunk& chunk : chunks_)
    for (const auto& block : chunk) states.push_back(block->make_state(stream, size, config_.compute_dtype()));
  return states;
}

}  // namespace witan
