// Several datasets, read in Witan's own order by their weights.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "witan/data/samples/mixture.h"
#include "witan/train/run/config.h"

namespace witan {

// Whether data_path names more than one dataset, several prefixes or a folder of shards, or data or data_path are said
// to be mixed (DataConfig::is_weighted()).
bool is_mixture(const DataConfig& config);

// The prefix itself, or those of the shards in a folder, by their names. Throws DataError for a folder without any.
std::vector<fs::path> shards_of(const std::string& prefix_or_folder);

// The parts of `data` that are mixed: files and folders, each with the prefix that its tokens have in a run whose
// tokens begin with `prefix`.
struct TextPart {
  fs::path text, tokens;
};
std::vector<TextPart> text_parts(const DataConfig& config, const fs::path& prefix);

struct MixtureData {
  std::shared_ptr<const SampleSource> train, held_out;
  std::vector<fs::path> prefixes;
};

// Each dataset of data_path, or part of `data`, whose tokens begin with `prefix`, with its weight: what stands before
// it there or in data_weights, of epochs so many times its number of samples, else that number; raised to 1 /
// data_temperature, and from the steps of data_schedule on another. A folder is all shards in it, which share its
// weight by their size. Each is split as held_out_fraction says; validation has the first weights, or with
// full_validation every sample once. Throws ConfigError, DataError, CorruptionError, IoError, also where
// data_max_epochs leaves too little for the run.
MixtureData open_mixture(const RunConfig& config, const fs::path& prefix, std::optional<int32_t> end_of_text);

// The phases of data_schedule, "STEP=W1,W2;STEP=W1,W2", counted from step 1, with the weights of `datasets` datasets.
// Throws ConfigError.
struct ScheduledWeights {
  int64_t step = 1;
  std::vector<double> weights;
  bool epochs = false;  // weights are epochs
};
std::vector<ScheduledWeights> parse_data_schedule(const std::string& schedule, size_t datasets);
// "W1,W2": numbers from 0 on; or epochs, "E1x,E2x": how often each dataset is read while the others are read as often
// as they say. Throws ConfigError naming `key`.
ScheduledWeights parse_data_weights(const std::string& weights, const std::string& key, size_t datasets);

}  // namespace witan
