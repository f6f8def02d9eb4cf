// The plan of a run: the memory, work and communication that its step needs, found by running that very step on the
// meta device. Nothing is computed there, but the allocator, the kernels' cost functions and the groups' accounting are
// those of a real run.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "witan/model/counts.h"
#include "witan/planner/memory/meta_rank.h"
#include "witan/train/config/config.h"
#include "witan/train/config/resolve.h"
#include "witan/train/config/run_plan.h"
#include "witan/train/config/trained_parameters.h"

namespace witan {

// The parameters that a parameter group of the optimizer takes, for people and programs.
struct ParamGroupUse {
  std::string label;      // ParamGroup::label
  std::string optimizer;  // "adam"
  std::string shard_by;   // "elements" or "matrices"
  double lr = 0, min_lr = 0;
  double weight_decay = 0;  // applied to its parameters that decay
  int64_t tensors = 0;      // in the whole model, regardless of sharding; a stack of experts is one tensor
  int64_t parameters = 0;   // number of elements
};

// The parameter groups in matching order, with [optimizer] itself last; empty if there are no groups. The config must
// be resolved and valid. Throws ConfigError for a group that takes no parameters; the message lists the model's
// parameters.
std::vector<ParamGroupUse> use_of_param_groups(const RunConfig& config);

// One line per group.
std::vector<std::string> format_param_groups(const std::vector<ParamGroupUse>& groups);

struct RankPlan {
  int rank = 0;
  std::vector<int> ranks = {};  // all ranks of the same class, including `rank`
  bool exact = true;            // if false, the others need at most as much, up to the last parts of sharded buffers
  int64_t arena_bytes = 0;      // high-water mark of addresses, exactly what the run's arena will reach
  std::map<std::string, int64_t> tags;  // peak bytes of each memory tag, exact as well
  int64_t reference_bytes = 0;          // of the weights: a frozen reference's
  int64_t offload_bytes = 0;            // pinned memory of the host, beside the arena (offload_activations)
  std::vector<double> offloaded = {};   // bytes that a forward moves there and its backward back, by chunk of layers
  KernelCosts step;                     // kernel costs of one step
  SentBytes sent;                       // bytes sent in one step
  CallCosts calls;                      // kernels and exchanges of one step, by kind of call
  KernelCosts evaluation;               // kernel costs of evaluating one micro-batch
  SentBytes eval_sent;
  CallCosts eval_calls;
  std::string why_eager;  // Engine::why_eager()
};

struct Plan {
  ParameterCounts counts;
  std::optional<TrainedParameters> trained;  // nullopt if no parameters are frozen
  std::vector<ParamGroupUse> param_groups;   // the optimizer's; empty: all parameters share one set of settings
  std::vector<RankPlan> ranks;               // one for each rank, or one for each class of equal ranks
  int64_t reserve_bytes = 0;                 // memory of the process outside its arenas (planner/memory/reserve.h)
  bool spread = false;                       // ranks are spread over unknown hosts, so that memory is checked per rank
  bool on_gpu = false;                       // arenas lie in GPU memory, one GPU per rank
  int64_t gpu_reserve_bytes = 0;             // memory of each GPU outside its arena
  bool processes = false;                    // each rank is a process
  bool exchanges_rows = false;               // experts are sharded over ranks
  bool rows_by_hosts = false;                // tokens for experts are sent to each host once
  bool peers_allowed = true;                 // WITAN_COMM_PEERS allows peer memory
  bool peers = true;                 // GPUs write tokens for experts into each other's memory; false: NCCL carries them
  bool through_host = false;         // ... or some of them send them through the host's memory
  int64_t checkpoint_bytes = 0;      // size of one checkpoint on disk (planner/memory/disk.h)
  int64_t anomaly_bytes = 0;         // size of one saved anomaly on disk
  int64_t anomalies = 0;             // the most that are kept
  int64_t reference_disk_bytes = 0;  // size of a frozen reference's weights on disk
  int64_t rollout_bytes = 0;         // about the size of a step's sampled answers on disk, if all are long
  int64_t rollout_files = 0;         // steps whose answers are kept
  double disk_bytes = 0;             // the most that checkpoints, anomalies and answers occupy at any time
  double step_flops = 0;             // FLOPs of one step, summed over all ranks
  int64_t tokens_per_step = 0;       // at the full global batch size
  std::string ramp = {};             // a sentence on the batch size ramp; empty if there is none
  std::vector<LayerSpec> layers;
  std::vector<StageLayers> stages;  // of the pipeline, in order
  int64_t micro_batches = 0;        // per rank and step
  double bubble = 0;                // pipeline bubble: idle time of the stages relative to their computation
  // Vocabulary size assumed while there is no tokenizer yet: the largest that the one to be trained may have.
  std::optional<int64_t> assumed_vocabulary;
  std::optional<int64_t>
      balanced_activations;  // if asked for: rank 0's activation bytes with perfectly balanced experts

  double rollouts_disk_bytes() const { return static_cast<double>(rollout_files) * static_cast<double>(rollout_bytes); }
  int64_t arena_bytes() const;  // the largest of all ranks
  // Why a step on GPUs is not captured as one CUDA graph; empty if it is on all ranks.
  std::string why_eager() const;
  std::vector<std::string> slow_paths() const;  // a sentence for each kernel of the step that takes a slow path
  int64_t offload_bytes() const;                // pinned memory of the host, of all ranks
  int64_t resident_bytes()
      const;  // the most host memory that the process takes: the reserve, and arenas if they lie in host memory
  // The memory that must be available: on each GPU if arenas lie there, else on the host.
  int64_t needed_bytes() const;
};

struct PlanOptions {
  std::optional<int64_t> prompt_tokens =
      {};                 // length of the longest sample prompt; nullopt: one token per byte, the upper bound
  bool balanced = false;  // also plan the activations of perfectly balanced experts
  // One rank of each class of equal ranks (planner/memory/rank_classes.h) is planned. RankPlans are listed
  //   all         for each rank
  //   by_class    for each class; there are at most `most_classes`
  //   one_by_one  for each rank, each planned separately: the reference that tests compare the other two with
  enum class Ranks : uint8_t { all, by_class, one_by_one } ranks = Ranks::all;
  size_t most_classes = 32;
  bool spread = false;  // Plan::spread
  // Run every micro-batch, which is slow if there are many: the reference for plans that skip some.
  bool every_micro_batch = false;
  // Called before and after each class with the number of classes planned so far; never concurrently.
  std::function<void(int64_t done, int64_t of)> watch = {};
};

// Throws ConfigError for a parameter group that takes no parameters.
Plan make_plan(const ResolvedConfig& config, const PlanOptions& options = {});

// The parts of a plan that are known without running a step: all but parameter groups, ranks, step_flops, peers and
// what `options` ask for.
Plan plan_outline(const ResolvedConfig& config);

// Adds what the rank, which is named in it, moves to the host's memory: exactly what its engine reserves there.
void add_offload(RankPlan& rank, const ResolvedConfig& config);

// The plan's promise to the run: memory and work. Time and ceilings, which a plan does not know, are 0.
RunPlan run_plan(const Plan& plan);

// Total bytes of all ranks' arenas. The first rank of each pipeline stage stands for the whole stage. Without a
// pipeline three micro-batches stand for all, since those between the first and the last need what the second needs.
int64_t estimate_arena_bytes(const ResolvedConfig& config);

// A plan in a fraction of the time, for searches that look at many: memory, work and traffic of rank 0 and, in a
// pipeline, of the first rank of the last stage, on which most depends. With p stages 2 p micro-batches stand for all,
// without a pipeline 3, because no more are in flight at once; costs per micro-batch are scaled to the real number.
// Evaluations and samples are left out.
Plan quick_plan(const ResolvedConfig& config);

}  // namespace witan
