// What a configuration leaves to Witan.
#pragma once

#include <string>
#include <vector>

#include "witan/train/run/config.h"

namespace witan {

// Fills in what is 0 or auto: device (GPUs where there are any), ranks (the most that share the micro-batches evenly,
// have a core or a GPU each and form groups of expert_model_parallel_size; one group at least), threads,
// expert_model_parallel_size, max_position_embeddings of a model that learns positions. `vocab_size`: the tokenizer's,
// for a model that has none of its own; a model that is too small for the tokenizer is a ConfigError.
void resolve(RunConfig& config, int cores, int64_t vocab_size);

// Whether a run must keep what the field, one of RunConfig's, says to be the same run: model, data, batch sizes and
// seed. How long it trains, how fast it learns, how much it drops and how it is laid out may change.
bool is_identity(const Field& field);

// Such keys in which the two differ, each as "key = now (was before)"; another path to the same files is no difference.
std::vector<std::string> changed_identity(RunConfig before, RunConfig now);

}  // namespace witan
