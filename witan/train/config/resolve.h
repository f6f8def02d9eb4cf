// Resolves the given options to the configuration of a run: one function without side effects, whose result never
// changes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "witan/train/config/config.h"

namespace witan {

// The ranks that a launcher has started, which override the configuration.
struct LaunchedRanks {
  int64_t ranks = 1;
  int64_t ranks_per_process = 1;
  int64_t local_ranks = 0;  // ranks on this host, which share its cores; 0: unknown until the processes have met
  std::vector<int> peer_islands = {};  // by rank; ranks with the same number reach each other's GPU memory
  std::vector<int> host_islands = {};  // the same for memory of the host that ranks share
};

// The facts by which a configuration is resolved. The same options and facts give the same configuration.
struct Facts {
  int cores = 1;  // usable by this process
  int gpus = 0;   // likewise
  // Name of the first GPU, and whether it runs the FP8 kernels, which are for Hopper.
  std::string gpu_name = {};
  bool gpu_multiplies_fp8 = true;
  std::optional<LaunchedRanks> launched = {};
  // Size of the tokenizer's vocabulary or, before it is trained, its upper bound. Without a tokenizer a model whose
  // vocab_size is 0 gets the 256 bytes, which every tokenizer has.
  std::optional<int64_t> vocabulary = {};
  // With a checkpoint's schedule: the length in steps of the run for which it was made.
  std::optional<int64_t> schedule_steps = {};
  bool peer_memory = true;    // whether the environment allows memory of other ranks' GPUs and of the host
  bool through_host = false;  // whether it allows the host's alone
};

// Cores, GPUs and environment variables of this process. Throws ConfigError for an invalid variable.
Facts facts_of_machine();

// A value that the given configuration left open.
struct Decision {
  std::string key, value, reason;
};

// A configuration without automatic values, and valid. Only resolve() makes one. It is immutable, and copies share its
// content.
class ResolvedConfig {
 public:
  const RunConfig& operator*() const { return content_->values; }
  const RunConfig* operator->() const { return &content_->values; }
  operator const RunConfig&() const {
    return content_->values;
  }  // NOLINT: implicit, so that functions which only read take a RunConfig

  // The configuration before resolve(): its automatic values are resolved again when the run is resumed.
  const RunConfig& given() const { return content_->given; }
  const std::vector<Decision>& decisions() const { return content_->decisions; }

  // These values after `change`, resolved again. Throws ConfigError as resolve() does.
  ResolvedConfig with(const std::function<void(RunConfig&)>& change) const;

 private:
  friend ResolvedConfig resolve(const RunConfig& given, const Facts& facts);
  struct Content {
    RunConfig given, values;
    std::vector<Decision> decisions;
  };
  explicit ResolvedConfig(Content content) : content_(std::make_shared<const Content>(std::move(content))) {}

  std::shared_ptr<const Content> content_;
};

// Fills in values that are 0 or auto, and raises values below the minimum that another key sets:
//   vocab_size                   the tokenizer's; a smaller one is a ConfigError
//   reset_position_ids,          true if samples have several documents, which do not attend to each other
//   reset_attention_mask
//   sample_prompt                a question with sft, if it is the default
//   max_position_embeddings      seq_length, for learned positions
//   device                       cuda if there is a GPU
//   ranks                        the launcher's; else the largest number that divides the micro-batches evenly, has a
//                                core or GPU per rank and forms groups of expert_model_parallel_size; at least a group
//   threads                      the cores, shared by the ranks of a host
//   expert_model_parallel_size   the largest that divides a stage's ranks and the experts
//   cp_comm_type                 a2a if context-parallel ranks divide the heads, else p2p; unchanged for one rank
//   gradient_norm_fusion         true on GPUs if it has an effect, but not in deterministic mode
//   checkpoint_timeout_minutes   distributed_timeout_minutes, if that is longer
//   train_iters                  the steps of train_samples, if that is set
//   lr_decay_samples             train_samples, if that is set
//   lr_decay_iters               the length of the run that a checkpoint's schedule was made for
// and checks the result. Resolving a resolved configuration again by the same facts changes nothing. Throws
// ConfigError.
ResolvedConfig resolve(const RunConfig& given, const Facts& facts);

// A warning if the size of the vocabulary makes the head slow on GPUs.
std::optional<std::string> slow_vocabulary(const RunConfig& config);

}  // namespace witan
