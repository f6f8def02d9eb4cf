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

// For error messages about an invalid size: the nearest valid sizes of the key, up to `most`. 1 is always valid. They
// are only sought when the message is written, since most sizes are valid.
struct NearestSizes {
  const char* key;
  int64_t wanted, most;
  std::function<bool(int64_t size)> work;
};
// Writes "set tensor_model_parallel_size to 2, the nearest that works" or "... to 2 or 4, the nearest that work".
std::ostream& operator<<(std::ostream& out, const NearestSizes& nearest);
// Divisors of `of` are the valid sizes.
NearestSizes nearest_divisors(const char* key, int64_t wanted, int64_t of);

// The state that ranks with the same parameters shard; each level includes those before it (ZeRO stages 1 to 3).
enum class Sharding : uint8_t { none, optimizer, gradients, parameters };

struct ParallelConfig {
  int64_t ranks = 0;                       // 0: one for each process of a launcher, else as many as are useful
  int64_t expert_model_parallel_size = 0;  // ranks that share one set of experts; 0: as many as fit
  int64_t threads = 0;                     // per rank; 0: cores / ranks
  bool deterministic = false;              // same bits in every layout, or in every run of one (sums_in_tree)
  bool batch_invariant_mode = false;       // same bits of a token's forward regardless of the rest of the batch
  std::string device = "auto";             // auto | cpu | cuda
  bool cuda_graph = true;                  // capture the whole step as one CUDA graph where possible
  bool offload_activations = false;        // keep inputs of recomputed blocks in host memory until the backward
  std::string gradient_dtype = "float32";  // float32 | bfloat16
  // Grouped GEMMs also sum the gradients that they write, for the norm: auto | true | false
  std::string gradient_norm_fusion = "auto";
  bool use_distributed_optimizer = false;           // ZeRO-1: replicas shard optimizer state and update
  int64_t num_distributed_optimizer_instances = 1;  // groups of replicas that each shard a complete state
  // no_shard | optim | optim_grads | optim_grads_params; auto: optim if use_distributed_optimizer
  std::string data_parallel_sharding_strategy = "auto";
  bool reshard_after_forward = true;        // free gathered parameters after the forward and gather them again
  bool overlap_param_gather = true;         // gather the next block's parameters while this one computes
  bool overlap_grad_reduce = true;          // reduce gradients during the backward
  int64_t expert_tensor_parallel_size = 0;  // ranks that shard one expert's matrices; 0: tensor-parallel size
  // Expert-parallel ranks per host, if a token is sent to each host once; 0: tokens go from rank to rank.
  int64_t hierarchical_expert_parallel_size = 0;
  int64_t tensor_model_parallel_size = 1;             // ranks that shard one matrix
  bool sequence_parallel = false;                     // they also shard the residual stream by tokens
  bool tp_comm_overlap = false;                       // exchange one half's tokens while the other half is computed
  bool loss_parallel = true;                          // they also shard the logits by vocabulary
  int64_t context_parallel_size = 1;                  // ranks that shard one sequence
  std::string cp_comm_type = "auto";                  // how they exchange: auto | p2p (a ring) | a2a (of heads)
  int64_t pipeline_model_parallel_size = 1;           // ranks that split the layers
  int64_t num_layers_per_virtual_pipeline_stage = 0;  // 0: one chunk of layers per rank
  int64_t num_virtual_stages_per_pipeline_rank = 0;   // the same, given as the number of chunks
  int64_t decoder_first_pipeline_num_layers = 0;      // 0: like any other stage
  int64_t decoder_last_pipeline_num_layers = 0;
  bool account_for_embedding_in_pipeline_split = false;
  bool account_for_loss_in_pipeline_split = false;
  std::string mesh = {};  // all sizes in one text, until expand_mesh() replaces it by the keys

  double distributed_timeout_minutes = 5;  // for ranks that wait for each other
  double checkpoint_timeout_minutes = 60;  // for ranks that wait for each other's part of a checkpoint

  bool offloads_on_cpu = false;  // set by tests, not by a key: offload_activations moves values on CPUs too

  // Set by the launcher, its hosts and the environment, not by keys.
  int64_t ranks_per_process = 0;       // 0: all ranks are threads of one process
  bool peer_memory = true;             // WITAN_COMM_PEERS: whether ranks may use each other's GPU memory
  bool through_host = false;           // WITAN_COMM_PEERS=host: as if no GPU reached another's memory
  std::vector<int> peer_islands = {};  // island of each rank, whose members reach each other's memory; empty: untested
  std::vector<int> host_islands = {};  // the same for ranks that share memory of their host

  bool on_gpu() const { return device == "cuda"; }
  bool offloads() const { return offload_activations && (on_gpu() || offloads_on_cpu); }
  double deadline_seconds() const { return 60 * distributed_timeout_minutes; }
  double checkpoint_deadline_seconds() const {
    return 60 * std::max(checkpoint_timeout_minutes, distributed_timeout_minutes);
  }
  bool fuses_gradient_norm() const { return gradient_norm_fusion == "true"; }  // once auto is resolved
  Sharding sharding() const;
  ContextExchange context_exchange() const;
  // Whether gradients are summed in one tree over micro-batches, with the bits of a single rank: in deterministic mode,
  // unless ranks divide a micro-batch's matrices or sequences.
  bool sums_in_tree(int64_t num_experts) const;
  Fields fields();
  // Throws ConfigError for sizes that do not divide the ranks or the experts, and names the nearest valid size.
  // num_experts 0: a dense model.
  void validate(int world, int64_t num_experts) const;
  // Checks the micro-batches of a deterministic step, `per_rank` on each rank: they must be nodes of one binary tree.
  // Throws ConfigError.
  void validate_tree(int world, int64_t num_experts, int64_t per_rank) const;
  // expert_model_parallel_size; if that is 0, the largest size that divides both a stage's ranks and the experts. The
  // config must be valid.
  int expert_ranks(int world, int64_t num_experts) const;
  // Expert-parallel ranks per host if tokens travel by hosts and there are several hosts; else 0.
  int hierarchical_expert_ranks(int world, int64_t num_experts) const;
  int expert_tensor_ranks(int64_t num_experts) const;  // 1 for a dense model
  // Ranks that work on the same samples: the product of all axes except replicate and shard.
  int64_t model_ranks() const {
    return tensor_model_parallel_size * context_parallel_size * pipeline_model_parallel_size;
  }
  int64_t data_ranks() const { return ranks / model_ranks(); }  // groups of ranks with different samples
  // The split of this many layers into pipeline stages. Throws ConfigError.
  StageSplit stage_split(int64_t num_layers) const;

 private:
  void validate_comm_type() const;
  void validate_model_ranks(int world, int64_t num_experts) const;
  void validate_optimizer(int world) const;
  void validate_experts(int world, int64_t num_experts) const;
  void validate_hosts(int world, int64_t num_experts) const;
};

}  // namespace witan
