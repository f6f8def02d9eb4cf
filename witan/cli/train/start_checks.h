// Checks of a run's folder, data and first weights before the run starts. None of them writes anything, so that
// `witan train --dry-run` makes them too.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/cli/args/run_config.h"
#include "witan/tokenizer/tokenizer.h"
#include "witan/train/config/resolve.h"

namespace witan::cli {

// Throws IoError unless the folder, or its nearest existing parent, is writable; ConfigError if another process trains
// the run in it.
void require_usable_folder(const fs::path& run_folder);

struct FoundData {
  std::vector<std::string> lines;              // about tokenizer and data, each with its label
  std::shared_ptr<const Tokenizer> tokenizer;  // null: the run would train one
  int64_t held_out = 0;  // samples of the validation split, or the most that an evaluation takes if
                         // text has not been tokenized
};

// Finds the data on which the run would train. `keeps`: it resumes, with the tokenizer and the tokens in its folder.
// Opens tokenizer, shards and validation sets, and checks that text exists and is text. Throws as preparing the data
// would: ConfigError, DataError, CorruptionError, IoError.
FoundData find_data(const ResolvedConfig& config, const fs::path& run_folder, bool keeps);

// The source of a new run's first weights: init_from or upcycle.
struct FirstWeights {
  std::string from;                   // a folder or file; empty: random weights
  std::vector<std::string> warnings;  // about damaged checkpoints that were skipped
};
// Throws as loading them would. Verifies a checkpoint's hashes if that is cheap. The size of the vocabulary is not
// compared if the tokenizer has not been trained yet.
FirstWeights check_first_weights(const ResolvedConfig& config);

// The source of a new run's frozen reference if that is another model. Throws as loading it would.
FirstWeights check_reference(const ResolvedConfig& config);

// Keeps the source of first weights (init_from, upcycle) of a run that has saved: it resumes from its own checkpoint,
// so that naming another source would only falsify its config.toml. Throws ConfigError if the call names another one.
void keep_first_weights(GivenConfig& given);

// For a call with --fresh: throws ConfigError if the first weights are in the run that it archives, since they would
// have moved before they are read.
void require_other_source(const GivenConfig& given);

}  // namespace witan::cli
