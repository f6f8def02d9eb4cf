// What a run will need, from running its very step on the meta device: nothing is computed, but the allocator, the
// kernels' cost twins and the groups' accounting are the real ones.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "witan/model/counts.h"
#include "witan/planner/memory/meta_rank.h"
#include "witan/train/run/config.h"
#include "witan/train/run/resolve.h"
#include "witan/train/run/run_plan.h"

namespace witan {

struct ParamGroupUse {
  std::string label;      // ParamGroup's
  std::string optimizer;  // "adam"
  std::string shard_by;   // "elements" or "matrices"
  double lr = 0, min_lr = 0;
  double weight_decay = 0;  // of those of its parameters that decay
  int64_t tensors = 0;      // of the whole model, however ranks hold them; a stack of experts is one
  int64_t parameters = 0;   // elements
};

// Every group in the order in which parameters look for theirs, [optimizer] itself last; nothing where there are no
// groups. The config must be resolved and valid. Throws ConfigError for a group that takes no parameters, which names
// those that there are.
std::vector<ParamGroupUse> use_of_param_groups(const RunConfig& config);

// A line for each.
std::vector<std::string> format_param_groups(const std::vector<ParamGroupUse>& groups);

struct RankPlan {
  int rank = 0;
  std::vector<int> ranks = {};          // all that need and do the same, it among them
  bool exact = true;                    // else they need no more than it, give or take the last ones of divided buffers
  int64_t arena_bytes = 0;              // high-water mark of addresses: to the byte what the run's arena will reach
  std::map<std::string, int64_t> tags;  // largest bytes of each memory tag, likewise
  KernelCosts step;                     // of one step
  SentBytes sent;                       // in one step
  CallCosts calls;                      // of one step: both of the former, by kind
  KernelCosts evaluation;               // of evaluating one micro-batch
  SentBytes eval_sent;
  CallCosts eval_calls;
  std::string why_eager;  // Engine::why_eager()
};

struct Plan {
  ParameterCounts counts;
  std::optional<int64_t> trained;           // parameters; nothing where none are frozen
  std::vector<ParamGroupUse> param_groups;  // of the optimizer; empty: one set of settings for all parameters
  std::vector<RankPlan> ranks;              // of each rank, or of one for each class of ranks that are alike
  int64_t reserve_bytes = 0;                // of the process, outside the arenas (planner/memory/reserve.h)
  bool spread = false;                      // over hosts, which are not known: what may run out is a rank's memory
  bool on_gpu = false;                      // arenas are GPUs' memory, a GPU for each rank
  int64_t gpu_reserve_bytes = 0;            // of each GPU, outside its arena
  bool processes = false;                   // ranks are processes
  bool exchanges_rows = false;              // experts are divided
  bool rows_by_hosts = false;               // their rows go to each host once
  bool peers_allowed = true;                // by WITAN_COMM_PEERS
  bool peers = true;             // GPUs write rows of experts into each other's memory; else NCCL carries them
  int64_t checkpoint_bytes = 0;  // of disk (planner/memory/disk.h)
  int64_t anomaly_bytes = 0;     // likewise
  int64_t anomalies = 0;         // that are kept at most
  double disk_bytes = 0;         // of all checkpoints that stand there at once, and of those anomalies
  double step_flops = 0;         // of one step, all ranks
  int64_t tokens_per_step = 0;   // of the largest
  std::string ramp = {};         // how the global batch grows, a sentence; empty: it does not
  std::vector<LayerSpec> layers;
  std::vector<StageLayers> stages;  // of the pipeline
  int64_t micro_batches = 0;        // of a rank in a step
  double bubble = 0;                // the time for which stages wait for each other, over that for which they work
  // Entries, where no tokenizer is there yet to say how many: the most that the one to be trained may have.
  std::optional<int64_t> assumed_vocabulary;
  std::optional<int64_t> balanced_activations;  // bytes of rank 0's, were experts' rows spread evenly; if asked for

  int64_t arena_bytes() const;  // the most that any rank needs
  // Of GPUs: why a step is not one recorded graph; empty where it is one on all ranks.
  std::string why_eager() const;
  std::vector<std::string> slow_paths() const;  // sentences, of kernels in a step that others would be faster than
  int64_t resident_bytes()
      const;  // the most that the process takes of the host: the reserve, and arenas that lie there
  // What the memory that may run out must have: a GPU's where arenas are there, else the host's.
  int64_t needed_bytes() const;
};

struct PlanOptions {
  std::optional<int64_t> prompt_tokens =
      {};                 // of the longest sample; nothing: one for each byte, the most there can be
  bool balanced = false;  // plan also what an even spread of experts' rows would take
  // Of ranks that are alike (planner/memory/rank_classes.h) one is planned. A plan has
  //   all         an entry for each rank
  //   by_class    one for each class, of which there are `most_classes` at most
  //   one_by_one  one for each rank, by a plan of its own: what the other two are held to
  enum class Ranks : uint8_t { all, by_class, one_by_one } ranks = Ranks::all;
  size_t most_classes = 32;
  bool spread = false;  // Plan::spread
  // Run every micro-batch, which takes long where they are many: what plans that leave some out are held to.
  bool every_micro_batch = false;
  // Called before and after each class of ranks with how many are planned, by one thread at a time.
  std::function<void(int64_t done, int64_t of)> watch = {};
};

// Throws ConfigError for a parameter group that takes no parameters.
Plan make_plan(const ResolvedConfig& config, const PlanOptions& options = {});

// All of a plan that is known without running a step: everything but parameter groups, ranks, step_flops, peers and
// what options ask for.
Plan plan_outline(const ResolvedConfig& config);

// What the plan promises a run: its memory and work. Time and ceilings, which a plan does not know, are left at 0.
RunPlan run_plan(const Plan& plan);

// Bytes of all ranks' arenas alone: the first rank of a stage stands for all of it, and of many micro-batches on a rank
// without a pipeline three for all, since those between the first and the last take what the second takes.
int64_t estimate_arena_bytes(const ResolvedConfig& config);

// Memory, work and traffic of the ranks that most depends on: the first one, and in a pipeline the first one of the
// last stage. With p stages 2 p micro-batches stand for all, without a pipeline 3: no more are in flight at once, and
// kernels and exchanges of a micro-batch are counted as often as there are more of them. It leaves out
// evaluations and samples.
Plan quick_plan(const ResolvedConfig& config);

}  // namespace witan
