#include "witan/train/config/config.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "witan/base/error.h"
#include "witan/data/megatron/blend.h"
#include "witan/kernels/moe/scores.h"
#include "witan/model/config.h"
#include "witan/model/frozen.h"
#include "witan/moe/layer/experts.h"
#include "witan/parallel/context_heads.h"
#include "witan/parallel/layout.h"

namespace witan {

Fields RunConfig::fields() {
  Fields all = join({{"train", train.fields()},
                     {"objective", objective.fields()},
                     {"rollout", rollout.fields()},
                     {"log", log.fields()},
                     {"load", load.fields()},
                     {"model", model.fields()},
                     {"data", data.fields()},
                     {"optimizer", optimizer.fields()},
                     {"parallel", parallel.fields()}});
  // Sections stay together, in the order of their first field.
  std::vector<std::string> order;
  for (const Field& field : all)
    if (std::find(order.begin(), order.end(), field.section) == order.end()) order.push_back(field.section);
  std::stable_sort(all.begin(), all.end(), [&](const Field& a, const Field& b) {
    return std::find(order.begin(), order.end(), a.section) < std::find(order.begin(), order.end(), b.section);
  });
  return all;
}

DType RunConfig::gradient_dtype() const {
  const DType compute = model.compute_dtype();
  return compute == DType::bf16 ? dtype_from_name(parallel.gradient_dtype) : accumulator(compute);
}

namespace {

// Weights that are gathered for each use have no copies that could be kept.
void validate_gathered_weights(const RunConfig& config) {
  require<ConfigError>(config.parallel.reshard_after_forward || !keeps_codes(config.model),
                       "reshard_after_forward = false keeps every layer's matrices decoded, which takes more memory "
                       "than frozen_format = ",
                       config.model.frozen_format,
                       " saves: leave it out, or set frozen_format, frozen_experts_format and frozen_head_format = "
                       "\"dtype\"");
  require<ConfigError>(!config.model.fp8_keep_weights || config.parallel.sharding() != Sharding::parameters,
                       "fp8_keep_weights = true keeps two bytes of every weight on every rank, and "
                       "data_parallel_sharding_strategy = optim_grads_params shards weights to save that memory; set "
                       "fp8_keep_weights = false");
}

// The routing kernels keep their rows in a GPU's shared memory and registers, which limits their sizes.
void validate_for_gpu(const ModelConfig& model) {
  const MoeConfig& moe = model.moe;
  using kernels::kMostChosenOnGpu, kernels::kMostExpertsOnGpu;
  require<ConfigError>(moe.num_experts <= kMostExpertsOnGpu, "num_experts = ", moe.num_experts,
                       ": the GPU router supports at most ", kMostExpertsOnGpu,
                       "; set num_experts to that, or --device cpu");
  require<ConfigError>(moe.num_experts == 0 || moe.moe_router_topk <= kMostChosenOnGpu,
                       "moe_router_topk = ", moe.moe_router_topk, ": the GPU router supports at most ",
                       kMostChosenOnGpu, "; set moe_router_topk to that, or --device cpu");
  require<ConfigError>(!moe.experts_choose() || moe.num_experts <= kMostChosenOnGpu, "num_experts = ", moe.num_experts,
                       ": with moe_router_selection = \"expert_choice\" the GPU router supports at most ",
                       kMostChosenOnGpu, "; set num_experts to that, or --device cpu");
}

// Where every rank gets all tokens, each sums the results of its own experts before ranks are added, so that a token's
// sum is rounded differently for each number of ranks.
void validate_dispatcher(const ParallelConfig& parallel, const MoeConfig& moe) {
  if (moe.num_experts == 0 || moe.moe_token_dispatcher_type != "allgather") return;
  const int ranks = parallel.expert_ranks(static_cast<int>(parallel.ranks), moe.num_experts);
  require<ConfigError>(ranks == 1 || !parallel.sums_in_tree(moe.num_experts),
                       "moe_token_dispatcher_type = allgather sums what a token's experts make of it rank by rank, but "
                       "deterministic = true promises the bits of one rank; set moe_token_dispatcher_type = "
                       "\"alltoall\", or deterministic = false");
}

using Sizes = DividedSizes;  // by key

// Throws ConfigError if one of these sizes is not divisible by `ranks`; `by` is the key that sets the ranks.
void validate_division(const char* by, int64_t ranks, const Sizes& divided) {
  int64_t common = 0;
  for (const auto& [key, size] : divided) common = std::gcd(common, size);
  for (const auto& [key, size] : divided)
    require<ConfigError>(size % ranks == 0, key, " = ", size, " is not divisible by ", by, " = ", ranks, "; ",
                         nearest_divisors(by, ranks, common), ", or change ", key);
}

// Throws ConfigError if a layer's mixer refuses so many tensor-parallel ranks. `common` is divided by the ranks too.
void validate_mixers(const std::vector<LayerSpec>& layers, int64_t ranks, int64_t common) {
  const auto refusal = [&](int64_t size) {
    for (const LayerSpec& layer : layers)
      if (std::string why = mixer_kind(layer.mixer).tensor_refusal(size); !why.empty()) return why;
    return std::string();
  };
  const auto works = [&](int64_t size) { return common % size == 0 && refusal(size).empty(); };
  const std::string why = refusal(ranks);
  require<ConfigError>(why.empty(), why, "; ", NearestSizes{"tensor_model_parallel_size", ranks, common, works});
}

// The sizes that ranks divide in the layers' mixers, each once.
Sizes mixer_sizes(const std::vector<LayerSpec>& layers) {
  Sizes sizes;
  for (const LayerSpec& layer : layers)
    for (const auto& size : mixer_kind(layer.mixer).tensor_sizes())
      if (std::ranges::find(sizes, size) == sizes.end()) sizes.push_back(size);
  return sizes;
}

// The FFN hidden size of dense layers or of experts; empty if the model has none.
Sizes ffn_sizes(const ModelConfig& model, bool of_experts) {
  const bool own = of_experts && model.moe.moe_ffn_hidden_size > 0;
  for (const LayerSpec& layer : model.layers()) {
    if (layer.moe == of_experts && layer.has_mlp())
      return {{own ? "moe_ffn_hidden_size" : "ffn_hidden_size", layer.mlp.ffn_hidden_size}};
    if (layer.parallel_mlp && !of_experts) return {{"ffn_hidden_size", layer.parallel_mlp->ffn_hidden_size}};
  }
  return {};
}

// Checks the sizes that the tensor and expert tensor axes divide.
void validate_tensor(const RunConfig& config) {
  const ParallelConfig& parallel = config.parallel;
  const ModelConfig& model = config.model;
  const int64_t ranks = parallel.tensor_model_parallel_size,
                of_experts = parallel.expert_tensor_ranks(model.moe.num_experts);
  Sizes of_expert = ffn_sizes(model, true);
  if (model.moe.num_experts > 0 &&
      model.moe.moe_expert_add_bias)  // each rank adds a share of the second product's bias
    of_expert.emplace_back(model.moe.moe_latent_size > 0 ? "moe_latent_size" : "hidden_size",
                           expert_width(model.moe, model.hidden_size));
  validate_division("expert_tensor_parallel_size", of_experts, of_expert);
  if (ranks == 1) return;
  Sizes divided = ffn_sizes(model, false);
  const std::vector<LayerSpec> layers = model.layers();
  const Sizes of_mixers = mixer_sizes(layers);
  divided.insert(divided.begin(), of_mixers.begin(), of_mixers.end());
  if (model.moe.has_shared_experts())
    divided.emplace_back("moe_shared_expert_intermediate_size", model.moe.moe_shared_expert_intermediate_size);
  if (const int64_t parts = parallel.context_parallel_size; parallel.sequence_parallel)
    divided.emplace_back(parts == 1 ? "seq_length" : "seq_length / context_parallel_size",
                         config.data.seq_length / parts);
  validate_division("tensor_model_parallel_size", ranks, divided);
  int64_t common = 0;
  for (const auto& [key, size] : divided) common = std::gcd(common, size);
  validate_mixers(layers, ranks, common);
  const auto check_entries = [&](const char* key, int64_t entries) {
    require<ConfigError>(entries >= ranks, "tensor_model_parallel_size = ", ranks, ": ", key, " = ", entries,
                         " leaves ranks without an entry; set tensor_model_parallel_size to at most ", entries);
  };
  check_entries("vocab_size", model.padded_vocab_size());
  if (model.attention.learned_positions())
    check_entries("max_position_embeddings", model.attention.max_position_embeddings);
  require<ConfigError>(model.moe.num_experts == 0 || parallel.sequence_parallel, "tensor_model_parallel_size = ", ranks,
                       " with num_experts = ", model.moe.num_experts, " needs sequence_parallel = true, so that each ",
                       "rank dispatches different tokens to the experts");
  constexpr int64_t kDrawnTogether = 4;
  require<ConfigError>(
      model.hidden_dropout == 0 || !parallel.sequence_parallel || model.hidden_size % kDrawnTogether == 0,
      "sequence_parallel = true with hidden_dropout: hidden_size = ", model.hidden_size, " must be a multiple of ",
      kDrawnTogether, ", since dropout masks are drawn in groups of that size; the nearest that works is ",
      std::max((model.hidden_size + kDrawnTogether / 2) / kDrawnTogether, int64_t{1}) * kDrawnTogether);
}

// Context parallelism divides sequences into two chunks per rank.
void validate_context(const RunConfig& config) {
  const int64_t size = config.parallel.context_parallel_size, length = config.data.seq_length;
  if (size == 1) return;
  const auto why = [&] { return cat("context_parallel_size = ", size, ": "); };
  const auto divides_length = [&](int64_t other) { return length % (2 * other) == 0; };
  require<ConfigError>(length % (2 * size) == 0, why(), "seq_length = ", length, " cannot be split into ", 2 * size,
                       " equal chunks, two per rank; ",
                       NearestSizes{"context_parallel_size", size, length / 2, divides_length});
  const int64_t chunk = length / (2 * size), unit = 8 * size;
  const auto check_masks = [&](const char* key, double dropped, int64_t elements) {
    require<ConfigError>(dropped == 0 || elements % 4 == 0, why(), key, " = ", dropped,
                         " draws masks in groups of 4, which ", "a chunk of ", chunk,
                         " tokens would split; the nearest seq_length that works is ",
                         std::max<int64_t>((length + unit / 2) / unit, 1) * unit);
  };
  const ContextExchange exchange = config.parallel.context_exchange();
  const std::vector<LayerSpec> layers = config.model.layers();
  const auto refusal = [&](int64_t ranks) {
    for (const LayerSpec& layer : layers)
      if (std::string reason =
              mixer_kind(layer.mixer).context_refusal(exchange, config.parallel.tensor_model_parallel_size, ranks);
          !reason.empty())
        return reason;
    return std::string();
  };
  const auto works = [&](int64_t other) { return divides_length(other) && refusal(other).empty(); };
  const std::string reason = refusal(size);
  require<ConfigError>(reason.empty(), why(), reason, NearestSizes{"context_parallel_size", size, length / 2, works});
  const bool by_heads =
      exchange == ContextExchange::heads ||
      (exchange == ContextExchange::automatic && ContextHeads(config.model, config.parallel).divide(size));
  if (!by_heads)  // otherwise a rank has all chunks of its heads
    check_masks("attention_dropout", config.model.attention.attention_dropout, chunk);
  check_masks("hidden_dropout", config.model.hidden_dropout, chunk * config.model.hidden_size);
}

// Pipeline stages pass on only the residual stream.
void validate_joined_layers(const RunConfig& config) {
  const int64_t stages = config.parallel.pipeline_model_parallel_size;
  if (stages == 1 || !config.model.joins_layers()) return;
  throw ConfigError(cat("pipeline_model_parallel_size = ", stages, ": ", config.model.joining_key(),
                        " has later layers read what earlier ones computed, and stages of a pipeline pass on the "
                        "residual stream alone; set pipeline_model_parallel_size = 1, and divide the model by "
                        "data_parallel_sharding_strategy, expert or tensor parallelism instead"));
}

// The advice to use the largest micro-batch, not above the present one, with which the ranks share the batch evenly.
std::string smaller_micro_batch(const TrainConfig& train, int64_t data_ranks) {
  if (train.global_batch_size % data_ranks != 0) return "";
  const int64_t of_rank = train.global_batch_size / data_ranks;
  int64_t size = std::min(train.micro_batch_size, of_rank);
  while (of_rank % size != 0) --size;
  return cat(", micro_batch_size to ", size);
}

// The exchange in two hops, between hosts and within them, needs the all-to-all dispatcher.
void validate_expert_hosts(const RunConfig& config) {
  const ParallelConfig& parallel = config.parallel;
  const int64_t size =
      parallel.hierarchical_expert_ranks(static_cast<int>(parallel.ranks), config.model.moe.num_experts);
  require<ConfigError>(size == 0 || config.model.moe.moe_token_dispatcher_type == "alltoall",
                       "hierarchical_expert_parallel_size = ", size,
                       " sends each token to a host once, but moe_token_dispatcher_type = \"",
                       config.model.moe.moe_token_dispatcher_type,
                       "\" sends all tokens to all ranks: set \"alltoall\", or hierarchical_expert_parallel_size = 0");
}

void validate_qk_clip(const RunConfig& config) {
  if (!config.optimizer.qk_clip) return;
  const auto has_logits = [](const LayerSpec& layer) { return mixer_kind(layer.mixer).logit_heads() > 0; };
  require<ConfigError>(std::ranges::any_of(config.model.layers(), has_logits),
                       "qk_clip = true bounds logits of attention, and no layer's mixer has any; set qk_clip = false");
  const AttentionConfig& attention = config.model.attention;
  if (attention.multi_latent_attention) return;  // its norms are before the projections that are clipped
  require<ConfigError>(!attention.qk_layernorm && !attention.qk_l2_norm, "qk_clip = true with ",
                       attention.qk_layernorm ? "qk_layernorm" : "qk_l2_norm",
                       ": norms undo the scaling of their inputs, and bound logits already; set qk_clip = false");
  require<ConfigError>(!attention.attention_k_eq_v,
                       "qk_clip = true with attention_k_eq_v: scaling the projection of keys would scale values too; "
                       "set qk_clip = false");
  require<ConfigError>(config.model.num_kv_shared_layers == 0,
                       "qk_clip = true with num_kv_shared_layers = ", config.model.num_kv_shared_layers,
                       ": scaling keys for one layer would scale the logits of others; set qk_clip = false");
}

// Modules of multi-token prediction are on the last pipeline stage, which lacks some parameters; and routes and
// upcycling cover only the model's main layers.
void validate_mtp(const RunConfig& config) {
  const int64_t modules = config.model.mtp_num_layers;
  if (modules == 0) return;
  require<ConfigError>(modules < config.data.seq_length, "mtp_num_layers = ", modules, " looks further ahead than the ",
                       config.data.seq_length, " tokens of a sequence; set mtp_num_layers to less than seq_length");
  require<ConfigError>(
      config.parallel.pipeline_model_parallel_size == 1 ||
          (!config.model.attention.learned_positions() && !config.model.embedding_norm),
      "mtp_num_layers = ", modules,
      " with pipeline_model_parallel_size = ", config.parallel.pipeline_model_parallel_size,
      ": the last stage has a copy of the embedding, but none of ",
      config.model.embedding_norm ? "its norm (embedding_norm)" : "the learned positions (position_embedding_type)",
      "; set pipeline_model_parallel_size = 1, or leave these out");
  for (const auto& [key, folder] : {std::pair{"record_routes", &config.train.record_routes},
                                    {"replay_routes", &config.train.replay_routes},
                                    {"upcycle", &config.train.upcycle}})
    require<ConfigError>(folder->empty(), key, " = ", *folder, " with mtp_num_layers = ", modules,
                         ": it knows the model's own layers alone; set mtp_num_layers = 0");
}

void validate_experts_use(const TrainConfig& train, const MoeConfig& moe) {
  for (const auto& [key, folder] :
       {std::pair{"record_routes", &train.record_routes}, {"replay_routes", &train.replay_routes}}) {
    if (folder->empty()) continue;
    require<ConfigError>(moe.num_experts > 0, key, " = ", *folder,
                         ": a dense model has no routes (num_experts = 0); remove it");
    require<ConfigError>(moe.moe_router_selection != "expert_choice", key, " = ", *folder,
                         ": experts that choose tokens leave no number of experts per token to record; use another "
                         "moe_router_selection");
  }
  require<ConfigError>(train.upcycle.empty() || train.init_from.empty(), "upcycle = ", train.upcycle,
                       " and init_from = ", train.init_from,
                       " both say where the first weights come from: give one (upcycling reads imported runs too)");
  require<ConfigError>(!train.branches() || !train.init_from.empty(),
                       "init_state = training continues the training of another run: set init_from to that run");
  require<ConfigError>(train.upcycle.empty() || moe.num_experts > 0, "upcycle = ", train.upcycle,
                       " makes experts from a dense model's layers, and num_experts = 0: set num_experts");
  require<ConfigError>(train.record_routes.empty() || train.record_routes != train.replay_routes,
                       "record_routes and replay_routes are both ", train.record_routes,
                       ": the replayed routes would be overwritten; record into another folder");
}

// A rewind leaves samples out, reads later ones instead, and computes steps again.
void validate_anomalies(const RunConfig& config) {
  const TrainConfig& train = config.train;
  require<ConfigError>(train.straggler_threshold == 0 || train.straggler_threshold > 1,
                       "straggler_threshold = ", train.straggler_threshold,
                       ": half of the ranks take longer than their median; use a value above 1, such as 1.2");
  if (!train.rewinds()) return;
  const char* key = train.on_nan == "rewind" ? "on_nan" : "on_spike";
  require<ConfigError>(!config.data.megatron_samples(), key,
                       " = rewind with data_samples = \"megatron\": its samples end with the last step, so that none "
                       "can be left out; set ",
                       key, " = skip");
  for (const auto& [routes, folder] :
       {std::pair{"record_routes", &train.record_routes}, {"replay_routes", &train.replay_routes}})
    require<ConfigError>(folder->empty(), key, " = rewind with ", routes, " = ", *folder,
                         ": recorded routes are those of each step's first samples; set ", key, " = skip");
}

void validate_checks(const RunConfig& config) {
  const TrainConfig& train = config.train;
  require<ConfigError>(
      !train.check_messages || !config.parallel.on_gpu(),
      "check_messages = true with device = cuda: NCCL moves what GPUs exchange, past the checksums; set "
      "check_messages = false");
  if (train.replay_interval == 0) return;
  const auto refuse = [&](const std::string& with, const char* why) {
    throw ConfigError(cat("replay_interval = ", train.replay_interval, " with ", with, ": ", why));
  };
  if (config.parallel.on_gpu())
    refuse("device = cuda",
           "the gradients of a GPU's step are within one recorded graph, where nothing reads them; set "
           "replay_interval = 0");
  for (const auto& [key, folder] :
       {std::pair{"record_routes", &train.record_routes}, {"replay_routes", &train.replay_routes}})
    if (!folder->empty())
      refuse(cat(key, " = ", *folder), "routes are those of a rank's own micro-batches; leave out one of the two");
  if (config.model.moe.moe_pool_factor > 0 && config.parallel.expert_model_parallel_size > 1)
    refuse("moe_pool_factor above 0",
           "passes that leave out rows of experts are made again, and have no one result; set moe_pool_factor = 0");
  if (config.model.moe.moe_exchange_factor > 0 && config.parallel.expert_model_parallel_size > 1)
    refuse("moe_exchange_factor above 0",
           "passes that leave out rows of experts are made again, and have no one result; set moe_exchange_factor = 0");
  const Layout layout(config.parallel, static_cast<int>(config.parallel.ranks), config.model.moe.num_experts);
  if (layout.world_size() > 1 &&
      ReplicaRing(layout).replicas() < 2)  // with one rank the key has no effect (idle_keys.h)
    refuse(cat("ranks = ", config.parallel.ranks),
           "they hold one copy of the model among them, so that no other rank can compute the same; use twice as many "
           "ranks, fewer that divide experts (expert_model_parallel_size), or set replay_interval = 0");
}

// Only ranks that hold the whole model can generate text.
void validate_samples(const RunConfig& config) {
  const TrainConfig& train = config.train;
  if (train.sample_interval == 0) return;
  require<ConfigError>(train.sample_tokens > 0, "sample_interval = ", train.sample_interval,
                       " needs sample_tokens above 0: set both, or sample_interval = 0");
  require<ConfigError>(config.parallel.model_ranks() == 1, "sample_interval = ", train.sample_interval,
                       ": with tensor, context or pipeline parallelism no rank holds the whole model, which generating "
                       "text needs. Set sample_interval = 0, and generate from checkpoints (`witan generate --run "
                       "NAME@STEP`)");
}

// Megatron-Core reads every sample once only if the datasets have no weights.
void validate_full_validation(const RunConfig& config) {
  const DataConfig& data = config.data;
  if (!config.train.full_validation || !data.megatron_samples()) return;
  const bool own = !data.train_data_path.empty();
  const std::string& list = own ? data.valid_data_path : data.data_path;
  const char* key = own ? "valid_data_path" : "data_path";
  require<ConfigError>(list.empty() || megatron::parse_blend(list, key).weights.empty(),
                       "full_validation = true with weights in ", key,
                       ": every validation sample is read once with data_samples = \"megatron\", so "
                       "that weights would have no effect; leave them out, give valid_data_path without them, or set "
                       "full_validation = false");
}

// Every global batch size of the ramp must give each data-parallel rank whole micro-batches, in a number that the
// layout allows.
void validate_ramp(const RunConfig& config) {
  const TrainConfig& train = config.train;
  const BatchRamp ramp = config.batch_ramp();
  if (!ramp.ramps()) return;
  const int64_t data_ranks = config.parallel.data_ranks(), unit = train.micro_batch_size * data_ranks;
  const std::string key = cat("rampup_batch_size = ", train.rampup_batch_size);
  const std::string units = cat("micro_batch_size x data-parallel ranks = ", train.micro_batch_size, " x ", data_ranks);
  require<ConfigError>(ramp.start() >= unit, key, ": its first global batch of ", ramp.start(), " is less than ", units,
                       ", with which every rank has one micro-batch; begin with ", unit, " or more");
  for (const int64_t size : ramp.sizes()) {
    require<ConfigError>(size % unit == 0, key, ": a global batch of ", size, " is not divisible by ", units,
                         "; choose start and increment as multiples of ", unit,
                         ", or set decrease_batch_size_if_needed = true, which rounds sizes down to such");
    try {
      config.parallel.validate_tree(static_cast<int>(config.parallel.ranks), config.model.moe.num_experts, size / unit);
    } catch (const ConfigError& error) {
      throw ConfigError(cat(key, ", a global batch of ", size, ": ", error.what()));
    }
  }
  for (const auto& [name, folder] :
       {std::pair{"record_routes", &train.record_routes}, {"replay_routes", &train.replay_routes}})
    require<ConfigError>(folder->empty(), key, " with ", name,
                         ": recorded routes are of global batches of one size; leave one of the two out");
}

// Schedules in samples need a run whose length is given in samples.
void validate_schedule(const RunConfig& config) {
  const OptimizerConfig& optimizer = config.optimizer;
  for (const auto& [key, samples] : {std::pair{"lr_warmup_samples", optimizer.lr_warmup_samples},
                                     {"lr_decay_samples", optimizer.lr_decay_samples},
                                     {"lr_wsd_decay_samples", optimizer.lr_wsd_decay_samples}})
    require<ConfigError>(samples == 0 || config.train.train_samples > 0, key, " = ", samples,
                         " counts samples, as schedules do with train_samples alone: set train_samples, or give the "
                         "key of iterations instead");
}

}  // namespace

BatchRamp RunConfig::batch_ramp() const {
  const BatchRamp ramp = BatchRamp::parse(train.rampup_batch_size, train.global_batch_size);
  const bool rounds = train.decrease_batch_size_if_needed && parallel.ranks > 0;
  return rounds ? ramp.in_units_of(train.micro_batch_size * parallel.data_ranks()) : ramp;
}

int64_t RunConfig::samples_to_train_on() const {
  return std::max(train.train_samples, batch_ramp().consumed_by(train.train_iters));
}

// Lanes are halves of a micro-batch, for which no masks are drawn and nothing is measured. A layer that is recomputed
// as a whole exchanges within the recomputation.
std::string_view RunConfig::key_against_tensor_overlap() const {
  std::string_view of_mixers;
  for (const LayerSpec& layer : model.layers())
    if (of_mixers.empty()) of_mixers = mixer_kind(layer.mixer).key_against_lanes();
  const std::pair<std::string_view, bool> keys[] = {
      {"tensor_model_parallel_size", parallel.tensor_model_parallel_size == 1},
      {"sequence_parallel", !parallel.sequence_parallel},
      {"micro_batch_size", train.micro_batch_size % 2 != 0},
      {"hidden_dropout", model.hidden_dropout > 0},
      {"attention_dropout", model.attention.attention_dropout > 0},
      {"lora_dropout", model.lora_rank > 0 && model.lora_dropout > 0},
      {"recompute_granularity", model.recompute() == Recompute::full},
      {"recompute_modules", read_recompute_modules(model).mlp},
      {"value_embedding_freq", model.value_embedding_freq != "none"},
      {"skip_connections", model.skip_connections},
      {"embedding_residual", model.embedding_residual},
      {"hidden_size_per_layer_input", model.hidden_size_per_layer_input > 0},
      {"log_activations", log.log_activations > 0},
      {"hybrid_override_pattern", model.mamba.any()},
      {"num_residual_streams", model.streams.any()},
      {of_mixers, !of_mixers.empty()}};
  const auto found = std::ranges::find_if(keys, &std::pair<std::string_view, bool>::second);
  return found == std::end(keys) ? "" : found->first;
}

void RunConfig::validate() const {
  validate_experts_use(train, model.moe);
  validate_anomalies(*this);
  model.validate();
  data.validate();
  validate_full_validation(*this);
  validate_samples(*this);
  require<ConfigError>(!data.megatron_samples() || train.seed <= UINT32_MAX, "seed = ", train.seed,
                       ": data_samples = \"megatron\" takes seeds below 2^32, as NumPy's generator does");
  optimizer.validate();
  parallel.validate(static_cast<int>(parallel.ranks), model.moe.num_experts);
  validate_context(*this);
  validate_tensor(*this);
  if (parallel.context_exchange() == ContextExchange::heads)
    ContextHeads(model, parallel).validate(parallel.context_parallel_size);
  validate_joined_layers(*this);
  validate_mtp(*this);
  objective.validate_within(*this);
  rollout.validate_within(*this);
  parallel.stage_split(model.num_layers).validate();
  if (parallel.gradient_dtype == "bfloat16") {
    require<ConfigError>(model.compute_dtype() == DType::bf16, "gradient_dtype = bfloat16 needs dtype = bfloat16, got ",
                         model.dtype, ": gradients cannot be narrower than their parameters");
    require<ConfigError>(!parallel.deterministic,
                         "gradient_dtype = bfloat16 and deterministic = true exclude each other: deterministic sums "
                         "are formed in float32; set gradient_dtype = float32");
  }
  require<ConfigError>(!parallel.fuses_gradient_norm() || !parallel.deterministic,
                       "gradient_norm_fusion = true and deterministic = true exclude each other: deterministic mode "
                       "promises the bits of the norm in every layout; set gradient_norm_fusion = false");
  validate_qk_clip(*this);
  validate_gathered_weights(*this);
  if (parallel.on_gpu()) validate_for_gpu(model);
  const int64_t positions = model.attention.max_position_embeddings;
  require<ConfigError>(positions == 0 || data.seq_length <= positions, "seq_length = ", data.seq_length,
                       " is more than max_position_embeddings = ", positions,
                       ": raise max_position_embeddings, or lower seq_length");
  const AttentionConfig& attention = model.attention;
  const auto most = attention.learned_positions() ? std::nullopt : attention.most_positions();
  require<ConfigError>(!most || data.seq_length <= *most, "seq_length = ", data.seq_length, " is more than ",
                       attention.most_positions_key(), " = ", most.value_or(0),
                       ", and rope_scaling_type = ", attention.rope_scaling_type,
                       attention.rope_scaling_type == "dynamic"
                           ? " would rotate each longer sequence by frequencies of its own, which Witan does not: set "
                             "seq_length to at most that"
                           : " rotates longer sequences by other factors: set rope_long_context = true, or lower "
                             "seq_length");
  require<ConfigError>(
      train.global_batch_size % train.micro_batch_size == 0, "micro_batch_size = ", train.micro_batch_size,
      " does not divide global_batch_size = ", train.global_batch_size, ": set one of them so that it does");
  const int64_t data_ranks = parallel.data_ranks(), batches = micro_batches();
  require<ConfigError>(
      batches % data_ranks == 0, "global_batch_size / micro_batch_size = ", batches, " is not divisible by ",
      data_ranks == parallel.ranks ? cat("ranks = ", parallel.ranks) : cat("the ", data_ranks, " data-parallel ranks"),
      ": set global_batch_size to a multiple of ", train.micro_batch_size * data_ranks,
      smaller_micro_batch(train, data_ranks), ", or ranks to ",
      parallel.model_ranks() == 1 ? "" : cat(parallel.model_ranks(), " times "), "a divisor of ", batches);
  parallel.validate_tree(static_cast<int>(parallel.ranks), model.moe.num_experts, batches / data_ranks);
  validate_dispatcher(parallel, model.moe);
  validate_ramp(*this);
  validate_schedule(*this);
  validate_expert_hosts(*this);
  validate_checks(*this);
  for (const auto& [key, wanted] : {std::pair{"keep_best", train.keep_best > 0},
                                    {"early_stopping_patience", train.early_stopping_patience > 0},
                                    {"valid_data", !data.valid_data.empty()}})
    require<ConfigError>(!wanted || train.eval_iters > 0 || train.full_validation, key,
                         " needs evaluations, and eval_iters = 0 asks for none: set eval_iters, or leave out ", key);
  require<ConfigError>(train.early_stopping_patience == 0 || train.eval_interval > 0,
                       "early_stopping_patience = ", train.early_stopping_patience,
                       " counts evaluations, and eval_interval = 0 asks for none before the end: set eval_interval");
  require<ConfigError>(
      !train.run.empty() && train.run.find('/') == std::string::npos && train.run != "." && train.run != "..",
      "run = \"", train.run, "\" must be a name without slashes; set runs_folder to store runs elsewhere");
}

}  // namespace witan
