// Layouts of tests: a mesh in the syntax of the key `mesh`, and settings outside of a mesh.
#pragma once

#include <string>

#include "witan/parallel/mesh_shorthand.h"
#include "witan/train/config/config.h"

namespace witan::testing {

inline constexpr const char* kFsdp = "optim_grads_params";  // value of data_parallel_sharding_strategy

struct LaidOut {
  std::string mesh;               // empty: one rank
  std::string strategy = "auto";  // data_parallel_sharding_strategy
  int64_t chunks = 0;             // virtual stages on each pipeline rank; 0: one
  bool loss_parallel = true;
  bool reshard_after_forward = true;
  std::string comm = "auto";  // cp_comm_type
};

inline std::string described(const LaidOut& layout) {
  return cat(layout.mesh.empty() ? "one rank" : layout.mesh, layout.strategy == "auto" ? "" : ", " + layout.strategy,
             layout.chunks > 0 ? cat(", ", layout.chunks, " chunks") : "", layout.loss_parallel ? "" : ", whole logits",
             layout.reshard_after_forward ? "" : ", kept after forward",
             layout.comm == "auto" ? "" : ", " + layout.comm);
}

// The config on these ranks. Expert parallelism follows the mesh; without it, experts are sharded like other matrices.
inline RunConfig laid_out(RunConfig config, const LaidOut& layout) {
  ParallelConfig parallel{1, 1, 1, config.parallel.deterministic};
  parallel.mesh = layout.mesh;
  expand_mesh(parallel, {});
  if (config.model.moe.num_experts == 0) parallel.expert_model_parallel_size = parallel.expert_tensor_parallel_size = 1;
  parallel.sequence_parallel = parallel.tensor_model_parallel_size > 1;
  parallel.loss_parallel = layout.loss_parallel;
  parallel.data_parallel_sharding_strategy = layout.strategy;
  parallel.reshard_after_forward = layout.reshard_after_forward;
  parallel.num_virtual_stages_per_pipeline_rank = layout.chunks;
  parallel.cp_comm_type = layout.comm;
  config.parallel = parallel;
  return config;
}

// A model and a batch that every axis of up to four ranks divides. Every step is clipped.
inline RunConfig divisible_config(const std::string& dtype = "float64") {
  RunConfig config;
  config.model.dtype = dtype;
  config.model.num_layers = 4;
  config.model.hidden_size = 32;
  config.model.vocab_size = 66;
  config.model.mlp.ffn_hidden_size = 24;
  config.model.attention.num_attention_heads = 8;
  config.model.attention.num_query_groups = 4;
  config.data.seq_length = 16;
  config.train.train_iters = 30;
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = 8;
  config.train.sample_tokens = 0;
  config.optimizer.lr_warmup_iters = 3;
  config.optimizer.clip_grad = 0.1;
  return config;
}

}  // namespace witan::testing
