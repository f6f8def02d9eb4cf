// What `witan train --dry-run` looks at before a run, without writing anything: where it would write, and what it would
// read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/cli/args/run_config.h"
#include "witan/tokenizer/tokenizer.h"
#include "witan/train/run/resolve.h"

namespace witan::cli {

// Throws IoError unless the folder, or the nearest that is there above it, may be written to; ConfigError where another
// process trains the run in it.
void require_usable_folder(const fs::path& run_folder);

struct FoundData {
  std::vector<std::string> lines;              // about tokenizer and data, each with its label
  std::shared_ptr<const Tokenizer> tokenizer;  // null: the run would train one
  int64_t held_out = 0;  // samples of the validation split; the most that an evaluation takes where
                         // that is not known before text is tokenized
};

// What the run would train on. `keeps`: it resumes, with the tokenizer and the tokens in its folder. Opens tokenizer,
// shards and validation sets; of text it checks that it is there and is text. Throws what preparing would throw for
// what it finds: ConfigError, DataError, CorruptionError, IoError.
FoundData find_data(const ResolvedConfig& config, const fs::path& run_folder, bool keeps);

// What a new run takes its first weights from: of init_from or upcycle.
struct FirstWeights {
  std::string from;                   // a folder or file; empty: they are drawn
  std::vector<std::string> warnings;  // damaged checkpoints that are passed over
};
// Throws what taking them would; hashes of a checkpoint are compared as far as that is cheap. Where the tokenizer is
// yet to be trained, the size of the vocabulary is not compared.
FirstWeights check_first_weights(const ResolvedConfig& config);

// Of a call that is taken as the run's: a run that has saved has its first weights behind it, and to ask for others
// (init_from, upcycle) would change no more than what config.toml says of where they came from. A file that leaves them
// out asks for nothing. Throws ConfigError.
void keep_first_weights(GivenConfig& given);

// Of a call with --fresh: throws ConfigError where the first weights are to be those of the run that it archives, which
// would have moved before they are read.
void require_other_source(const GivenConfig& given);

}  // namespace witan::cli
