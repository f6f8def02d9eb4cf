// The configuration of parallelism, with Megatron-LM's keys where it has them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "witan/base/config/fields.h"
#include "witan/nn/axes.h"
#include "witan/parallel/stages.h"

namespace witan {

// For the refusal of a size that does not work: those next to it up to `most` that do. 1 works always. They are sought
// when the message is written, since most sizes work.
struct NearestSizes {
  int64_t wanted, most;
  std::function<bool(int64_t size)> work;
};
// "the nearest that works is 2", "the nearest that work are 2 and 4".
std::ostream& operator<<(std::ostream& out, const NearestSizes& nearest);
// Where divisors of `of` work.
NearestSizes nearest_divisors(int64_t wanted, int64_t of);

// What ranks with the same parameters divide among them, each also what those before it divide (ZeRO's stages 1 to 3).
enum class Sharding : uint8_t { none, optimizer, gradients, parameters };

struct ParallelConfig {
  int64_t ranks = 0;                       // 0: one for each process of a launcher, else as many as are useful
  int64_t expert_model_parallel_size = 0;  // ranks that share one set of experts; 0: as many as fit
  int64_t threads = 0;                     // of each rank; 0: cores / ranks
  bool deterministic = false;              // the same bits in every layout, or every run of one (sums_in_tree)
  bool batch_invariant_mode = false;       // a token's forward has the same bits whatever is computed beside it
  std::string device = "auto";             // auto | cpu | cuda
  bool cuda_graph = true;                  // a GPU runs the whole step as one recorded graph, where that can be
  std::string gradient_dtype = "float32";  // float32 | bfloat16
  // Products of experts sum up the gradients that they write, for the norm: auto | true | false
  std::string gradient_norm_fusion = "auto";
  bool use_distributed_optimizer = false;           // ZeRO-1: replicas divide the optimizer's state and work
  int64_t num_distributed_optimizer_instances = 1;  // groups of replicas, each of which divides it anew
  // no_shard | optim | optim_grads | optim_grads_params; auto: optim if use_distributed_optimizer
  std::string data_parallel_sharding_strategy = "auto";
  bool reshard_after_forward = true;        // whole values are given back after the forward, and gathered again
  bool overlap_param_gather = true;         // the next block's are gathered beside the computation of this one
  bool overlap_grad_reduce = true;          // gradients are reduced beside the backward
  int64_t expert_tensor_parallel_size = 0;  // ranks that divide one expert's matrices; 0: as tensor's
  // Of the expert axis, ranks that share a host, to which each token's row goes once; 0: rows go from rank to rank
  int64_t hierarchical_expert_parallel_size = 0;
  int64_t tensor_model_parallel_size = 1;             // ranks that divide one matrix
  bool sequence_parallel = false;                     // those divide the residual stream too, by tokens
  bool tp_comm_overlap = false;                       // one half's tokens travel while the other half's are computed
  bool loss_parallel = true;                          // and the logits, by vocabulary
  int64_t context_parallel_size = 1;                  // ranks that divide one sequence
  std::string cp_comm_type = "auto";                  // how they attend: auto | p2p (a ring) | a2a (of heads)
  int64_t pipeline_model_parallel_size = 1;           // ranks that divide the layers
  int64_t num_layers_per_virtual_pipeline_stage = 0;  // 0: one run of layers per rank
  int64_t num_virtual_stages_per_pipeline_rank = 0;   // the same, said by their number
  int64_t decoder_first_pipeline_num_layers = 0;      // 0: as any other stage
  int64_t decoder_last_pipeline_num_layers = 0;
  bool account_for_embedding_in_pipeline_split = false;
  bool account_for_loss_in_pipeline_split = false;
  std::string mesh = {};  // all sizes in one text, until expand_mesh() has set the keys that it stands for

  double distributed_timeout_minutes = 5;  // that ranks wait for each other
  double checkpoint_timeout_minutes = 60;  // for each other's part of a checkpoint

  // What a launcher, its hosts and the environment say: no keys.
  int64_t ranks_per_process = 0;       // 0: all ranks are threads of one process
  bool peer_memory = true;             // WITAN_COMM_PEERS: whether ranks may use each other's GPU memory
  std::vector<int> peer_islands = {};  // by rank: those with the same number do; empty: nobody has tried

  bool on_gpu() const { return device == "cuda"; }
  double deadline_seconds() const { return 60 * distributed_timeout_minutes; }
  double checkpoint_deadline_seconds() const {
    return 60 * std::max(checkpoint_timeout_minutes, distributed_timeout_minutes);
  }
  bool fuses_gradient_norm() const { return gradient_norm_fusion == "true"; }  // where auto has been resolved
  Sharding sharding() const;
  ContextExchange context_exchange() const;
  // Whether gradients are summed in one tree over micro-batches, to the bits of one rank: deterministic, and no rank
  // finds summands within a micro-batch, as ranks that divide matrices or sequences do.
  bool sums_in_tree(int64_t num_experts) const;
  Fields fields();
  // Throws ConfigError when experts cannot be divided so; it names the nearest size that works. num_experts 0: dense.
  void validate(int world, int64_t num_experts) const;
  // What `deterministic` asks of a step's micro-batches, `per_rank` on each: runs that are nodes of one binary tree.
  // Throws ConfigError.
  void validate_tree(int world, int64_t num_experts, int64_t per_rank) const;
  // expert_model_parallel_size, or for 0 the largest that divides both a stage's ranks and the experts. The config is
  // valid.
  int expert_ranks(int world, int64_t num_experts) const;
  // Of the expert axis, those of a host if rows of experts travel by hosts, of which there are several then; else 0.
  int hierarchical_expert_ranks(int world, int64_t num_experts) const;
  int expert_tensor_ranks(int64_t num_experts) const;  // 1 for a dense model
  // Ranks that share the work on the same samples: of all axes but replicate and shard.
  int64_t model_ranks() const {
    return tensor_model_parallel_size * context_parallel_size * pipeline_model_parallel_size;
  }
  int64_t data_ranks() const { return ranks / model_ranks(); }  // with samples of their own
  // Of the pipeline's stages, for a model of so many layers. Throws ConfigError.
  StageSplit stage_split(int64_t num_layers) const;

 private:
  void validate_comm_type() const;
  void validate_model_ranks(int world, int64_t num_experts) const;
  void validate_optimizer(int world) const;
  void validate_experts(int world, int64_t num_experts) const;
  void validate_hosts(int world, int64_t num_experts) const;
};

}  // namespace witan
