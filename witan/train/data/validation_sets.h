// Additional validation sets (valid_data): texts, conversations with sft, or token shards of either. A run is evaluated
// on them as well as on its validation split, and each set has its own curve.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "witan/data/corpus/conversations.h"
#include "witan/data/samples/sample_source.h"
#include "witan/tokenizer/tokenizer.h"
#include "witan/train/config/config.h"

namespace witan {

struct ValidationSet {
  std::string name;
  std::shared_ptr<const SampleSource> samples;  // in the order of the file
  std::vector<std::string> warnings = {};
  bool at_end = false;  // evaluated once, after the last step
};

// Reads and tokenizes the files of a set into memory; a single path of tokens (token_dataset.h) is opened instead.
// Tokens of another tokenizer are refused or, if the run has `begun`, reported as a warning. Throws ConfigError,
// DataError, IoError.
ValidationSet read_validation_set(const std::string& name, const std::vector<fs::path>& files, const DataConfig& config,
                                  const Tokenizer& tokenizer, std::shared_ptr<const ConversationFormat> format,
                                  bool begun = true);

// The checks that need no tokenizer. Throws DataError, CorruptionError or IoError, naming the set, for texts of
// valid_data that are missing, empty, or not UTF-8.
void check_validation_text(const DataConfig& config);

// Reads and tokenizes the sets of valid_data. Throws ConfigError, DataError, IoError.
std::vector<ValidationSet> read_validation_sets(const DataConfig& config, const Tokenizer& tokenizer,
                                                std::shared_ptr<const ConversationFormat> format, bool begun);

}  // namespace witan
