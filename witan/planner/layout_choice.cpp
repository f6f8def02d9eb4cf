#include "witan/planner/layout_choice.h"

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
    for (const int64_t tensor : divisors(limits_.gpus, limits_.gpus_per_host))
      for (const int64_t context : divisors(limits_.gpus / tensor, kMostContext))
        for (const int64_t pipeline : divisors(limits_.gpus / tensor / context, config_.model.num_layers)) {
          LayoutChoice choice;
          choice.tensor = tensor;
          choice.context = context;
          choice.pipeline = pipeline;
          divide_experts(choice);
        }
    return std::move(all_);
  }

 private:
  int64_t data_ranks(const LayoutChoice& of) const { return limits_.gpus / (of.tensor * of.context * of.pipeline); }

  void divide_experts(LayoutChoice choice) {
    const int64_t experts = config_.model.moe.num_experts, stage = limits_.gpus / choice.pipeline;
    if (experts == 0) return divide_state(choice);
    for (const int64_t expert_tensor : {int64_t{1}, choice.tensor}) {
      if (expert_tensor == 1 && choice.expert_tensor != 1) continue;
      choice.expert_tensor = expert_tensor;
      for (const int64_t expert : divisors(std::gcd(stage / expert_tensor, experts), experts)) {
        choice.expert = expert;
        divide_state(choice);
      }
      if (choice.tensor == 1) break;
    }
  }

  // Ranks that hold the same divide it, if there are any.
  void divide_state(LayoutChoice choice) {
    const int64_t of_experts = limits_.gpus / (choice.pipeline * choice.expert * choice.expert_tensor);
    add_stages(choice);
    if (limits_.axes_alone) return;
    const int64_t of_others = data_ranks(choice) * choice.context;
    if (std::max(of_others, config_.model.moe.num_experts > 0 ? of_experts : 1) == 1) return;
    for (const Sharding sharding : {Sharding::optimizer, Sharding::gradients, Sharding::parameters}) {
      choice.sharding = sharding;
      choice.instances = 1;
      add_stages(choice);
    }
    const int64_t hosts = limits_.gpus / limits_.gpus_per_host;
    if (hosts <= 1 || limits_.gpus % limits_.gpus_per_host != 0) return;
    // One rank of each host has nobody to divide with.
    if (data_ranks(choice) % hosts != 0 || of_others == hosts) return;
    choice.instances = hosts;
    add_stages(choice);
  }

  void add_stages(LayoutChoice choice) {
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
      if (size % 2 != 0 || limits_.keep_micro_batch_size) return;
    }
  }

  const RunConfig& config_;
  const ChoiceLimits limits_;
  std::vector<LayoutChoice> all_;
};

}  // namespace

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
  parallel.data_parallel_sharding_strategy = more ? name_of(choice.sharding) : "auto";
  if (!more) parallel.use_distributed_optimizer = choice.sharding == Sharding::optimizer;
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
