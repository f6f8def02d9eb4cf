#include "witan/parallel/config.h"

#include <bit>
#include <cstdlib>
#include <numeric>
#include <ostream>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {

std::ostream& operator<<(std::ostream& out, const NearestSizes& nearest) {
  int64_t below = 1, above = 0;
  for (int64_t size = 2; size <= nearest.most && above == 0; ++size)
    if (nearest.work(size)) (size <= nearest.wanted ? below : above) = size;
  out << "set " << nearest.key << " to " << below;
  if (above == 0) return out << ", the nearest that works";
  return out << " or " << above << ", the nearest that work";
}

NearestSizes nearest_divisors(const char* key, int64_t wanted, int64_t of) {
  return {key, wanted, of, [of](int64_t size) { return of % size == 0; }};
}

Fields ParallelConfig::fields() {
  return {
      Field{"mesh", &mesh,
            "Mesh as sizes of axes, instead of the keys below: replicate=2,shard=2,tensor=2; axes: replicate, shard, "
            "context, tensor, pipeline, expert and expert_tensor"},
      Field{"ranks", &ranks,
            "Number of ranks, as threads of this process or of those started by a launcher; 0: one per process of a "
            "launcher, else as many as are useful"}
          .between(0, 1 << 16),
      Field{"expert_model_parallel_size", &expert_model_parallel_size,
            "Expert-parallel size (0: as large as ranks and experts allow)"}
          .between(0, 1 << 20),
      Field{"hierarchical_expert_parallel_size", &hierarchical_expert_parallel_size,
            "Expert-parallel ranks per host: a token is sent once to each host that has any of its experts, and from "
            "there to their ranks (0: directly from rank to rank)"}
          .between(0, 1 << 20),
      Field{"expert_tensor_parallel_size", &expert_tensor_parallel_size,
            "Tensor-parallel size within an expert (0: same as tensor_model_parallel_size)"}
          .between(0, 1 << 20),
      Field{"tensor_model_parallel_size", &tensor_model_parallel_size, "Tensor-parallel size"}.between(1, 1 << 20),
      Field{"sequence_parallel", &sequence_parallel,
            "Sequence parallelism: shard norms and dropout over tensor-parallel ranks by tokens; switched on for MoE "
            "models with tensor parallelism unless it is set"},
      Field{"tp_comm_overlap", &tp_comm_overlap,
            "Exchange tokens of one half of a micro-batch over tensor-parallel ranks while those of the other half are "
            "computed; needs sequence_parallel, and keeps the tokens gathered for the backward"},
      Field{"loss_parallel", &loss_parallel, "Shard logits and loss over tensor-parallel ranks by vocabulary"},
      Field{"context_parallel_size", &context_parallel_size, "Context-parallel size"}.between(1, 1 << 20),
      Field{"cp_comm_type", &cp_comm_type,
            "How context-parallel ranks attend to whole sequences: p2p (keys and values travel around a ring), a2a (an "
            "all-to-all gives each rank some heads of all positions); auto: a2a where they divide the heads, else p2p. "
            "Layers with a recurrence exchange heads in any case"},
      Field{"pipeline_model_parallel_size", &pipeline_model_parallel_size, "Pipeline-parallel size"}.between(1,
                                                                                                             1 << 20),
      Field{"num_layers_per_virtual_pipeline_stage", &num_layers_per_virtual_pipeline_stage,
            "Layers per virtual pipeline stage (0: no interleaving)"}
          .at_least(0),
      Field{"num_virtual_stages_per_pipeline_rank", &num_virtual_stages_per_pipeline_rank,
            "Virtual pipeline stages per pipeline rank (0: no interleaving)"}
          .at_least(0),
      Field{"decoder_first_pipeline_num_layers", &decoder_first_pipeline_num_layers,
            "Layers of the first pipeline stage (0: as many as the others)"}
          .at_least(0),
      Field{"decoder_last_pipeline_num_layers", &decoder_last_pipeline_num_layers,
            "Layers of the last pipeline stage (0: as many as the others)"}
          .at_least(0),
      Field{"account_for_embedding_in_pipeline_split", &account_for_embedding_in_pipeline_split,
            "Count the embedding as a layer when layers are assigned to pipeline stages"},
      Field{"account_for_loss_in_pipeline_split", &account_for_loss_in_pipeline_split,
            "Count the head and the loss as a layer when layers are assigned to pipeline stages"},
      Field{"use_distributed_optimizer", &use_distributed_optimizer,
            "Distributed optimizer (ZeRO-1): shard optimizer state and update over data-parallel ranks"},
      Field{"num_distributed_optimizer_instances", &num_distributed_optimizer_instances,
            "Number of groups of data-parallel ranks that each hold a complete, sharded optimizer state"}
          .between(1, 1 << 20),
      Field{"distributed_timeout_minutes", &distributed_timeout_minutes,
            "Timeout in minutes for ranks that wait for each other at the start and in each collective; the error "
            "names the missing rank"}
          .between(0.05, 1e6),
      Field{"checkpoint_timeout_minutes", &checkpoint_timeout_minutes,
            "Timeout in minutes for ranks that wait for each other to write or read their parts of a checkpoint; at "
            "least distributed_timeout_minutes"}
          .between(0.05, 1e6),
      Field{"data_parallel_sharding_strategy", &data_parallel_sharding_strategy,
            "State sharded over data-parallel ranks: none, optimizer (ZeRO-1), also gradients (ZeRO-2), also "
            "parameters (FSDP); auto: by use_distributed_optimizer"}
          .one_of({"auto", "no_shard", "optim", "optim_grads", "optim_grads_params"}),
      Field{"reshard_after_forward", &reshard_after_forward,
            "Free sharded parameters after a block's forward and all-gather them again for its backward; false: "
            "all-gather them once per step"},
      Field{"overlap_param_gather", &overlap_param_gather,
            "All-gather the next block's sharded parameters while the current block is computed (on GPUs)"},
      Field{"overlap_grad_reduce", &overlap_grad_reduce, "Reduce gradients during the backward instead of after it"},
      Field{"threads", &threads, "Threads per rank (0: cores divided by ranks)"}.between(0, 4096),
      Field{"deterministic", &deterministic,
            "Same bits in every layout, by summing gradients in a fixed tree; with tensor or context parallelism: in "
            "every run of one layout"},
      Field{
          "batch_invariant_mode", &batch_invariant_mode,
          "Same bits of a token's forward regardless of the rest of the batch, so that log probabilities of generation "
          "equal training's to the bit on GPUs too, which is slower (a CPU always does this)"},
      Field{"device", &device, "Device of the ranks: one GPU each, or the CPU; auto: GPUs if there are any"}.one_of(
          {"auto", "cpu", "cuda"}),
      Field{"cuda_graph", &cuda_graph, "Capture the whole step as one CUDA graph where possible"},
      Field{"offload_activations", &offload_activations,
            "Keep the inputs of recomputed blocks in pinned host memory between forward and backward, moved beside "
            "computation; needs recompute_granularity = full (on GPUs)"},
      Field{"gradient_dtype", &gradient_dtype,
            "Dtype of gradients and their reduction; bfloat16 halves their memory and needs dtype = bfloat16"}
          .one_of({"float32", "bfloat16"}),
      Field{
          "gradient_norm_fusion", &gradient_norm_fusion,
          "Sum the gradients of experts for the gradient norm in the GEMMs that write them, if no other rank has a "
          "part of them; the norm is then the same to rounding, not to the bit; auto: on GPUs, except in deterministic "
          "mode"}
          .one_of({"auto", "true", "false"}),
  };
}

StageSplit ParallelConfig::stage_split(int64_t num_layers) const {
  return {num_layers,
          pipeline_model_parallel_size,
          num_layers_per_virtual_pipeline_stage,
          num_virtual_stages_per_pipeline_rank,
          decoder_first_pipeline_num_layers,
          decoder_last_pipeline_num_layers,
          account_for_embedding_in_pipeline_split,
          account_for_loss_in_pipeline_split};
}

// The axes that divide the work on one sample: their product must divide the ranks.
void ParallelConfig::validate_model_ranks(int world, int64_t num_experts) const {
  const std::pair<const char*, int64_t> axes[] = {{"tensor_model_parallel_size", tensor_model_parallel_size},
                                                  {"context_parallel_size", context_parallel_size},
                                                  {"pipeline_model_parallel_size", pipeline_model_parallel_size}};
  int64_t left = world;
  for (const auto& [key, size] : axes) {
    require<ConfigError>(left % size == 0, key, " = ", size, " does not divide ",
                         left == world ? counted(left, "rank") : cat(left, " of ", world, " ranks"),
                         ": set ranks to a multiple of ", world / left * size, ", or ",
                         nearest_divisors(key, size, left));
    left /= size;
  }
  const int64_t divided = expert_tensor_ranks(num_experts), stage = world / pipeline_model_parallel_size;
  require<ConfigError>(stage % divided == 0, "expert_tensor_parallel_size = ", divided, " does not divide the ", stage,
                       " ranks of a pipeline stage; ", nearest_divisors("expert_tensor_parallel_size", divided, stage));
}

int ParallelConfig::expert_tensor_ranks(int64_t num_experts) const {
  if (num_experts == 0) return 1;
  return static_cast<int>(expert_tensor_parallel_size > 0 ? expert_tensor_parallel_size : tensor_model_parallel_size);
}

Sharding ParallelConfig::sharding() const {
  const std::string& strategy = data_parallel_sharding_strategy;
  if (strategy == "optim_grads_params") return Sharding::parameters;
  if (strategy == "optim_grads") return Sharding::gradients;
  const bool optimizer = strategy == "optim" || (strategy == "auto" && use_distributed_optimizer);
  return optimizer ? Sharding::optimizer : Sharding::none;
}

ContextExchange ParallelConfig::context_exchange() const {
  if (cp_comm_type == "auto") return ContextExchange::automatic;
  return cp_comm_type == "a2a" ? ContextExchange::heads : ContextExchange::ring;
}

bool ParallelConfig::sums_in_tree(int64_t num_experts) const {
  return deterministic && tensor_model_parallel_size == 1 && context_parallel_size == 1 &&
         expert_tensor_ranks(num_experts) == 1;
}

// Checked before ranks are counted: these are Megatron-LM's other values, and lists with one value per layer.
void ParallelConfig::validate_comm_type() const {
  if (cp_comm_type == "auto" || cp_comm_type == "p2p" || cp_comm_type == "a2a") return;
  const std::string key = cat("cp_comm_type = ", cp_comm_type, ": ");
  if (cp_comm_type == "a2a+p2p")
    throw ConfigError(cat(key,
                          "rings of groups that exchange heads are not supported; set it to a2a, which needs "
                          "heads for every rank, or to p2p, which does not"));
  if (cp_comm_type == "all_gather" || cp_comm_type == "allgather")
    throw ConfigError(cat(key,
                          "keys and values are not gathered; set it to p2p, which passes them on and never holds "
                          "all of them, or to a2a"));
  if (cp_comm_type.find_first_of(" ,[") != std::string::npos)
    throw ConfigError(cat(key,
                          "all layers have heads of one number and exchange them in one way; give one value, auto, "
                          "p2p or a2a"));
  throw ConfigError(cat(key, "must be one of auto, p2p, a2a"));
}

void ParallelConfig::validate(int world, int64_t num_experts) const {
  validate_comm_type();
  validate_model_ranks(world, num_experts);
  validate_optimizer(static_cast<int>(world / model_ranks()));
  validate_experts(static_cast<int>(world / pipeline_model_parallel_size / expert_tensor_ranks(num_experts)),
                   num_experts);
  validate_hosts(world, num_experts);
}

// `world`: ranks with different samples.
void ParallelConfig::validate_optimizer(int world) const {
  const int64_t instances = num_distributed_optimizer_instances;
  require<ConfigError>(!use_distributed_optimizer || sharding() != Sharding::none,
                       "use_distributed_optimizer = true shards the optimizer, but data_parallel_sharding_strategy = "
                       "no_shard shards nothing; set it to optim, or use_distributed_optimizer to false");
  require<ConfigError>(instances == 1 || sharding() != Sharding::none,
                       "num_distributed_optimizer_instances = ", instances, " needs use_distributed_optimizer = true");
  require<ConfigError>(reshard_after_forward || sharding() == Sharding::parameters,
                       "reshard_after_forward = false, but only data_parallel_sharding_strategy = optim_grads_params "
                       "gathers parameters; leave it true");
  require<ConfigError>(overlap_grad_reduce || sharding() < Sharding::gradients,
                       "overlap_grad_reduce = false keeps full gradients until the end of the backward, but "
                       "data_parallel_sharding_strategy = ",
                       data_parallel_sharding_strategy,
                       " keeps only shards of them; set overlap_grad_reduce to true, or the strategy to optim");
  require<ConfigError>(instances <= world && world % instances == 0,
                       "num_distributed_optimizer_instances = ", instances, " does not divide the ", world,
                       " data-parallel ranks; ",
                       nearest_divisors("num_distributed_optimizer_instances", instances, world));
}

// `world`: ranks over which experts are distributed.
void ParallelConfig::validate_experts(int world, int64_t num_experts) const {
  const int64_t size = expert_model_parallel_size;
  if (size == 0) return;
  const std::string key = cat("expert_model_parallel_size = ", size);
  const auto refuse_unless = [&](bool possible, const std::string& why) {
    require<ConfigError>(possible, why, "; ",
                         nearest_divisors("expert_model_parallel_size", size, std::gcd<int64_t>(world, num_experts)));
  };
  if (num_experts == 0) {
    require<ConfigError>(size == 1, key,
                         ": a dense model has no experts to distribute; set it to 1, or num_experts above 0");
    return;
  }
  refuse_unless(size <= num_experts, cat(key, ": more ranks than the ", num_experts,
                                         " experts (expert_tensor_parallel_size shards an expert's matrices)"));
  const int64_t tensor = expert_tensor_ranks(num_experts);
  refuse_unless(
      size <= world,
      cat(key, ": more ranks than the ", world,
          tensor > 1 ? cat(" that expert_tensor_parallel_size = ", tensor, " leaves of ", world * tensor) : "",
          pipeline_model_parallel_size > 1 ? " of a pipeline stage"
          : tensor > 1                     ? ""
                       : cat(" there are, which the other axes make (--mesh replicate=", size, ",expert=", size,
                             " has ", size, ")"),
          tensor > 1 ? " (1 would leave all)" : ""));
  refuse_unless(num_experts % size == 0, cat("num_experts = ", num_experts, " is not divisible by ", key));
  refuse_unless(world % size == 0, cat(key, " does not divide the ", world, " ranks",
                                       tensor > 1 ? cat(" that expert_tensor_parallel_size = ", tensor, " leaves") : "",
                                       " of a pipeline stage"));
}

// A key without effect, as on one rank, is not an error.
void ParallelConfig::validate_hosts(int world, int64_t num_experts) const {
  const int64_t size = hierarchical_expert_parallel_size, of_experts = expert_ranks(world, num_experts);
  if (size == 0 || of_experts == 1) return;
  require<ConfigError>(of_experts % size == 0, "hierarchical_expert_parallel_size = ", size, " does not divide the ",
                       of_experts, " expert-parallel ranks into hosts of as many each; ",
                       nearest_divisors("hierarchical_expert_parallel_size", size, of_experts));
  require<ConfigError>(hierarchical_expert_ranks(world, num_experts) == 0 || !sums_in_tree(num_experts),
                       "hierarchical_expert_parallel_size = ", size,
                       " sums what a token's experts make of it host by host, but deterministic = true promises the "
                       "bits of layouts that do not; set hierarchical_expert_parallel_size = 0, or deterministic = "
                       "false");
}

int ParallelConfig::hierarchical_expert_ranks(int world, int64_t num_experts) const {
  const int64_t size = hierarchical_expert_parallel_size;
  return size > 0 && size < expert_ranks(world, num_experts) ? static_cast<int>(size) : 0;
}

void ParallelConfig::validate_tree(int world, int64_t num_experts, int64_t per_rank) const {
  if (!sums_in_tree(num_experts)) return;
  const auto power_of_two = [](int64_t n) { return std::has_single_bit(static_cast<uint64_t>(n)); };
  const int64_t data = world / model_ranks(), optimizers = num_distributed_optimizer_instances;
  require<ConfigError>(data == 1 || power_of_two(per_rank),
                       "deterministic = true needs a power-of-two number of micro-batches per data-parallel rank, got ",
                       per_rank, " on each of ", data,
                       " ranks: change ranks or global_batch_size / micro_batch_size, or use one rank");
  require<ConfigError>(
      sharding() == Sharding::none || optimizers == 1 || power_of_two(data / optimizers),
      "deterministic = true needs a power-of-two number of data-parallel ranks per optimizer instance, got ",
      data / optimizers, " with num_distributed_optimizer_instances = ", optimizers,
      ": change one of the two, or use 1 instance");
  const int64_t stage = world / pipeline_model_parallel_size;
  const int experts = expert_ranks(world, num_experts);
  require<ConfigError>(experts == stage || power_of_two(experts),
                       "deterministic = true needs a power-of-two expert_model_parallel_size, or one over all ", stage,
                       " ranks of a pipeline stage, got ", experts);
}

int ParallelConfig::expert_ranks(int world, int64_t num_experts) const {
  if (expert_model_parallel_size > 0) return static_cast<int>(expert_model_parallel_size);
  if (num_experts == 0) return 1;
  return static_cast<int>(
      std::gcd<int64_t>(world / pipeline_model_parallel_size / expert_tensor_ranks(num_experts), num_experts));
}

}  // namespace witan
