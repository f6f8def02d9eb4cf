// How the work is divided over ranks; keys as in Megatron-LM where it has them.
#pragma once

#include "witan/base/fields.h"

namespace witan {

struct ParallelConfig {
  int64_t ranks = 0;                       // of this process; 0: as many as are useful
  int64_t expert_model_parallel_size = 0;  // ranks that share one set of experts; 0: as many as fit
  int64_t threads = 0;                     // of each rank; 0: cores / ranks
  bool deterministic = false;              // the same bits in every layout
  std::string device = "auto";             // auto | cpu | cuda
  bool cuda_graph = true;                  // a GPU runs the whole step as one recorded graph, where that can be
  std::string gradient_dtype = "float32";  // float32 | bfloat16
  bool use_distributed_optimizer = false;  // ZeRO-1: replicas divide the optimizer's state and work
  int64_t num_distributed_optimizer_instances = 1;  // groups of replicas, each of which divides it anew

  bool processes = false;  // ranks are processes, as a launcher says: no key

  bool on_gpu() const { return device == "cuda"; }
  Fields fields();
  // Throws ConfigError when experts cannot be divided so; it names the nearest size that works. num_experts 0: dense.
  void validate(int world, int64_t num_experts) const;
  // What `deterministic` asks of a step's micro-batches, `per_rank` on each: runs that are nodes of one binary tree.
  // Throws ConfigError.
  void validate_tree(int world, int64_t num_experts, int64_t per_rank) const;
  // expert_model_parallel_size, or for 0 the largest that divides both the world and the experts. The config is valid.
  int expert_ranks(int world, int64_t num_experts) const;
};

}  // namespace witan
