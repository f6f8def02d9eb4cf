#include "witan/planner/search/layout_choice.h"

#include <algorithm>
#include <numeric>

#include "witan/base/error.h"
#include "witan/parallel/layout.h"

namespace witan {
namespace {

std::vector<int64_t> divisors(int64_t of, int64_t most) {
  std::vector<int64_t> all;
  for (int64_t size = 1; size <= std::min(of, most); ++size)
    if (of % size == 0) all.push_back(size);
  return all;
}

constexpr const char* kTensor = "tensor_model_parallel_size";
constexpr const char* kContextRanks = "context_parallel_size";
constexpr const char* kPipeline = "pipeline_model_parallel_size";
constexpr const char* kVirtualStages = "num_virtual_stages_per_pipeline_rank";
constexpr const char* kVirtualLayers = "num_layers_per_virtual_pipeline_stage";
constexpr const char* kExpert = "expert_model_parallel_size";
constexpr const char* kExpertTensor = "expert_tensor_parallel_size";
constexpr const char* kStrategy = "data_parallel_sharding_strategy";
constexpr const char* kDistributedOptimizer = "use_distributed_optimizer";
constexpr const char* kInstances = "num_distributed_optimizer_instances";
constexpr const char* kMicroBatch = "micro_batch_size";

const char* name_of(Sharding sharding) {
  switch (sharding) {
    case Sharding::none:
      return "no_shard";
    case Sharding::optimizer:
      return "optim";
    case Sharding::gradients:
      return "optim_grads";
    case Sharding::parameters:
      break;
  }
  return "optim_grads_params";
}

const char* name_of(Recompute recompute) {
  return recompute == Recompute::none ? "none" : recompute == Recompute::selective ? "selective" : "full";
}

class Choices {
 public:
  Choices(const RunConfig& config, const ChoiceLimits& limits) : config_(config), limits_(limits) {}

  std::vector<LayoutChoice> all() && {
    constexpr int64_t kMostContext = 16;
    const auto& parallel = config_.parallel;
    LayoutChoice choice;
    for (const int64_t tensor :
         sizes(kTensor, parallel.tensor_model_parallel_size, limits_.gpus, limits_.gpus_per_host))
      for (const int64_t context :
           sizes(kContextRanks, parallel.context_parallel_size, limits_.gpus / tensor, kMostContext))
        for (const int64_t pipeline : sizes(kPipeline, parallel.pipeline_model_parallel_size,
                                            limits_.gpus / tensor / context, config_.model.num_layers)) {
          choice.tensor = tensor;
          choice.context = context;
          choice.pipeline = pipeline;
          divide_experts(choice);
        }
    return std::move(all_);
  }

 private:
  bool holds(const char* key) const { return limits_.held.contains(key); }
  // The held value, else the divisors. A held size that divides nothing is still a choice, which validation refuses.
  std::vector<int64_t> sizes(const char* key, int64_t value, int64_t of, int64_t most) const {
    if (holds(key)) return {value};
    return divisors(std::max<int64_t>(of, 1), most);
  }
  int64_t data_ranks(const LayoutChoice& of) const { return limits_.gpus / (of.tensor * of.context * of.pipeline); }

  std::vector<int64_t> expert_tensor_sizes(int64_t tensor) const {
    const int64_t held = config_.parallel.expert_tensor_parallel_size;
    if (holds(kExpertTensor)) return {held > 0 ? held : tensor};
    return tensor == 1 ? std::vector<int64_t>{1} : std::vector<int64_t>{1, tensor};
  }

  void divide_experts(LayoutChoice choice) {
    const int64_t experts = config_.model.moe.num_experts, stage = limits_.gpus / choice.pipeline;
    if (experts == 0) return divide_state(choice);
    for (const int64_t expert_tensor : expert_tensor_sizes(choice.tensor)) {
      choice.expert_tensor = expert_tensor;
      for (const int64_t expert : sizes(kExpert, config_.parallel.expert_model_parallel_size,
                                        std::gcd(stage / expert_tensor, experts), experts)) {
        choice.expert = expert;
        divide_state(choice);
      }
    }
  }

  // State can be sharded only if several ranks hold the same.
  std::vector<Sharding> shardings(const LayoutChoice& choice) const {
    if (holds(kStrategy) || holds(kDistributedOptimizer)) return {config_.parallel.sharding()};
    const int64_t of_experts = limits_.gpus / (choice.pipeline * choice.expert * choice.expert_tensor);
    const int64_t of_others = data_ranks(choice) * choice.context;
    const bool nobody = std::max(of_others, config_.model.moe.num_experts > 0 ? of_experts : 1) <= 1;
    if (nobody || (limits_.axes_alone && !holds(kInstances))) return {Sharding::none};
    return {Sharding::none, Sharding::optimizer, Sharding::gradients, Sharding::parameters};
  }

  void divide_state(LayoutChoice choice) {
    choice.instances = holds(kInstances) ? config_.parallel.num_distributed_optimizer_instances : 1;
    for (const Sharding sharding : shardings(choice)) {
      choice.sharding = sharding;
      add_stages(choice);
    }
    if (choice.sharding != Sharding::parameters || limits_.axes_alone || holds(kInstances)) return;
    const int64_t hosts = limits_.gpus / limits_.gpus_per_host, of_data = data_ranks(choice);
    if (hosts <= 1 || limits_.gpus % limits_.gpus_per_host != 0) return;
    // With one such rank per host there is no rank to shard with.
    if (of_data % hosts != 0 || of_data * choice.context == hosts) return;
    choice.instances = hosts;
    add_stages(choice);
  }

  // The number of virtual stages that follows from held keys; 0 if none is held.
  int64_t held_chunks(int64_t pipeline) const {
    const auto& parallel = config_.parallel;
    if (holds(kVirtualLayers) && parallel.num_layers_per_virtual_pipeline_stage > 0)
      return std::max<int64_t>(config_.model.num_layers / pipeline / parallel.num_layers_per_virtual_pipeline_stage, 1);
    if (!holds(kVirtualLayers) && !holds(kVirtualStages)) return 0;
    return std::max<int64_t>(parallel.num_virtual_stages_per_pipeline_rank, 1);
  }

  // A held number of layers per virtual stage must divide those of a stage.
  bool takes_held_layers(int64_t pipeline) const {
    const int64_t held = holds(kVirtualLayers) ? config_.parallel.num_layers_per_virtual_pipeline_stage : 0;
    return held == 0 || config_.model.num_layers % (pipeline * held) == 0;
  }

  void add_stages(LayoutChoice choice) {
    if (!takes_held_layers(choice.pipeline)) return;
    if (const int64_t held = held_chunks(choice.pipeline)) {
      choice.virtual_stages = held;
      return add_batches(choice);
    }
    const int64_t layers = config_.model.num_layers;
    for (int64_t chunks = 1; chunks == 1 || layers % (chunks * choice.pipeline) == 0; chunks *= 2) {
      choice.virtual_stages = chunks;
      add_batches(choice);
      if (choice.pipeline == 1 || limits_.axes_alone) break;
    }
  }

  void add_batches(LayoutChoice choice) {
    for (int64_t size = config_.train.micro_batch_size;; size /= 2) {
      choice.micro_batch_size = size;
      for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
        if (recompute < config_.model.recompute()) continue;
        choice.recompute = recompute;
        all_.push_back(choice);
        if (limits_.axes_alone) break;
      }
      if (size % 2 != 0 || limits_.keep_micro_batch_size || holds(kMicroBatch)) return;
    }
  }

  const RunConfig& config_;
  const ChoiceLimits limits_;
  std::vector<LayoutChoice> all_;
};

}  // namespace

std::span<const char* const> searched_keys() {
  static constexpr const char* kKeys[] = {kTensor,    kContextRanks, kPipeline, kVirtualStages,        kVirtualLayers,
                                          kExpert,    kExpertTensor, kStrategy, kDistributedOptimizer, kInstances,
                                          kMicroBatch};
  return kKeys;
}

std::vector<LayoutChoice> layout_choices(const RunConfig& config, const ChoiceLimits& limits) {
  return Choices(config, limits).all();
}

RunConfig with_layout(RunConfig config, const LayoutChoice& choice) {
  auto& parallel = config.parallel;
  parallel.tensor_model_parallel_size = choice.tensor;
  parallel.sequence_parallel = choice.tensor > 1 || parallel.sequence_parallel;
  parallel.context_parallel_size = choice.context;
  parallel.pipeline_model_parallel_size = choice.pipeline;
  parallel.num_virtual_stages_per_pipeline_rank = choice.virtual_stages > 1 ? choice.virtual_stages : 0;
  parallel.num_layers_per_virtual_pipeline_stage = 0;
  if (choice.pipeline == 1) {
    parallel.decoder_first_pipeline_num_layers = parallel.decoder_last_pipeline_num_layers = 0;
    parallel.account_for_embedding_in_pipeline_split = parallel.account_for_loss_in_pipeline_split = false;
  }
  parallel.expert_model_parallel_size = choice.expert;
  if (const int64_t of_host = parallel.hierarchical_expert_parallel_size; of_host > 0 && choice.expert % of_host != 0)
    parallel.hierarchical_expert_parallel_size = 0;
  parallel.expert_tensor_parallel_size = config.model.moe.num_experts > 0 ? choice.expert_tensor : 0;
  const bool more = choice.sharding > Sharding::optimizer;
  if (parallel.sharding() != choice.sharding) {  // keys that already mean this sharding stay as the user wrote them
    parallel.data_parallel_sharding_strategy = more ? name_of(choice.sharding) : "auto";
    if (!more) parallel.use_distributed_optimizer = choice.sharding == Sharding::optimizer;
  }
  parallel.num_distributed_optimizer_instances = choice.instances;
  if (choice.sharding < Sharding::parameters) parallel.reshard_after_forward = true;
  if (choice.sharding >= Sharding::gradients) parallel.overlap_grad_reduce = true;
  config.model.recompute_granularity = name_of(choice.recompute);
  config.train.micro_batch_size = choice.micro_batch_size;
  return config;
}

std::string mesh_text(const RunConfig& config) {
  const Layout layout(config.parallel, static_cast<int>(config.parallel.ranks), config.model.moe.num_experts);
  std::string text;
  for (const Axis axis :
       {Axis::replicate, Axis::shard, Axis::context, Axis::tensor, Axis::pipeline, Axis::expert, Axis::expert_tensor})
    if (const int size = layout.mesh().size(axis); size > 1) text += cat(text.empty() ? "" : ",", axis, "=", size);
  return text.empty() ? "one rank" : text;
}

std::string rest_text(const RunConfig& config) {
  const auto& parallel = config.parallel;
  std::string text = name_of(parallel.sharding());
  if (const int64_t chunks = parallel.num_virtual_stages_per_pipeline_rank; chunks > 1)
    text += cat(", ", chunks, " virtual stages");
  text += cat(", micro-batch ", config.train.micro_batch_size);
  if (config.model.recompute() != Recompute::none) text += cat(", recompute ", config.model.recompute_granularity);
  return text;
}

}  // namespace witan
