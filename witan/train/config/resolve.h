// Resolves the given options to the configuration of a run: one function without side effects, whose result is never
// changed afterwards.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "witan/train/config/config.h"

namespace witan {

// What a launcher has decided, whatever the configuration says.
struct LaunchedRanks {
  int64_t ranks = 1;
  int64_t ranks_per_process = 1;
  int64_t local_ranks = 0;  // ranks of this host, which share its cores; 0: not known before the processes have met
  std::vector<int> peer_islands = {};  // by rank: those with the same number reach each other's GPU memory; see config
};

// What a configuration is resolved by. The same words and facts give the same configuration.
struct Facts {
  int cores = 1;  // that this process may use
  int gpus = 0;   // that it can use
  // Of the first of them: its name, and whether it multiplies numbers of 8 bits by the kernels there are, Hopper's.
  std::string gpu_name = {};
  bool gpu_multiplies_fp8 = true;
  std::optional<LaunchedRanks> launched = {};
  // Entries of the tokenizer's vocabulary or, before it is trained, the most that it may have. Nothing where no
  // tokenizer is read: a model without a vocabulary of its own gets the 256 bytes, which every tokenizer has.
  std::optional<int64_t> vocabulary = {};
  // Where the schedule is a checkpoint's: the steps of the run that it was made for, which it keeps.
  std::optional<int64_t> schedule_steps = {};
  bool peer_memory = true;  // whether the environment lets ranks use each other's GPU memory
};

Facts facts_of_machine();  // cores, GPUs and the environment. Throws ConfigError for what that cannot mean

// A value that the configuration left to Witan.
struct Decision {
  std::string key, value, reason;
};

// A configuration in which nothing is automatic and everything is valid. Only resolve() makes one, and nobody changes
// it; copies share what they hold.
class ResolvedConfig {
 public:
  const RunConfig& operator*() const { return content_->values; }
  const RunConfig* operator->() const { return &content_->values; }
  operator const RunConfig&() const {
    return content_->values;
  }  // NOLINT: implicit, so that functions which only read take a RunConfig

  // What it was resolved from: what is automatic there stays so when the run is resumed.
  const RunConfig& given() const { return content_->given; }
  const std::vector<Decision>& decisions() const { return content_->decisions; }

  // Another configuration: this one's values but for what `change` makes of them, resolved anew. This one stays as it
  // is. Throws ConfigError as resolve() does.
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

// Fills in what is 0 or auto, each where nothing else is said, and raises what another key's value sets the least of:
//   vocab_size                   the tokenizer's; a model that is too small for the tokenizer is a ConfigError
//   reset_position_ids,          true with sft: conversations of a sample are kept apart
//   reset_attention_mask
//   sample_prompt                a question with sft, where it is the default
//   max_position_embeddings      seq_length, for a model that learns positions
//   device                       GPUs where there are any
//   ranks                        the launcher's; else the most that share the micro-batches evenly, have a core or a
//                                GPU each and form groups of expert_model_parallel_size; one group at least
//   threads                      the cores, shared by the ranks of a host
//   expert_model_parallel_size   the largest that divides a stage's ranks and the experts
//   cp_comm_type                 a2a where context-parallel ranks divide the heads, else p2p; one rank has neither
//   gradient_norm_fusion         true on GPUs where it has an effect, but in deterministic mode
//   checkpoint_timeout_minutes   distributed_timeout_minutes, where that is longer
//   train_iters                  the steps of train_samples, where that is set
//   lr_decay_samples             train_samples, likewise
//   lr_decay_iters               the length of the run that a checkpoint's schedule was made for
// and checks the whole. Resolving the values of a resolved configuration by the same facts changes nothing. Throws
// ConfigError.
ResolvedConfig resolve(const RunConfig& given, const Facts& facts);

// What a person should know who measures or trains this: the vocabulary makes the head slow on its GPUs.
std::optional<std::string> slow_vocabulary(const RunConfig& config);

}  // namespace witan
