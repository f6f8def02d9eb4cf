// A mixture of several datasets, read in Witan's order by their weights.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "witan/data/samples/mixture.h"
#include "witan/train/config/config.h"

namespace witan {

// Whether the configuration mixes datasets: data_path names several prefixes or a folder of shards, or a key says how
// data or data_path are mixed (DataConfig::is_weighted()).
bool is_mixture(const DataConfig& config);

// The prefix itself, or the prefixes of the shards in a folder, sorted. Throws DataError for a folder without shards.
std::vector<fs::path> shards_of(const std::string& prefix_or_folder);

// The files and folders of `data` that are mixed, each with the prefix of its token shards, which begins with `prefix`.
struct TextPart {
  fs::path text, tokens;
};
std::vector<TextPart> text_parts(const DataConfig& config, const fs::path& prefix);

struct MixtureData {
  std::shared_ptr<const SampleSource> train, held_out;
  std::vector<fs::path> prefixes;
};

// Opens the datasets of data_path, or the parts of `data`, whose token shards begin with `prefix`. A dataset's weight
// is the one in data_weights or before it in data_path; for epochs, that many times its number of samples; by default
// its number of samples. It is raised to the power of 1 / data_temperature, and data_schedule changes it at given
// steps. A folder is one dataset, whose shards share its weight in proportion to their size. Each dataset is split by
// held_out_fraction. Validation uses the first weights or, with full_validation, every sample once. Throws ConfigError,
// DataError, CorruptionError, IoError; DataError, too, if data_max_epochs leaves too few samples for the run.
MixtureData open_mixture(const RunConfig& config, const fs::path& prefix, std::optional<int32_t> end_of_text);

// Parses data_schedule, "STEP=W1,W2;STEP=W1,W2", with steps counted from 1 and a weight for each of `datasets`
// datasets. Throws ConfigError.
struct ScheduledWeights {
  int64_t step = 1;
  std::vector<double> weights;
  bool epochs = false;  // weights are epochs
};
std::vector<ScheduledWeights> parse_data_schedule(const std::string& schedule, size_t datasets);
// Parses weights, "W1,W2", which are not negative; or relative epochs, "E1x,E2x". Throws ConfigError naming `key`.
ScheduledWeights parse_data_weights(const std::string& weights, const std::string& key, size_t datasets);

// Throws ConfigError, naming the value and the way out, if the number of weights differs from that of datasets, a
// weight stands in the place of a dataset, or `split` is invalid. Only for a new run: a run that has begun keeps its
// data, wherever they are now.
void check_datasets(const DataConfig& config);

}  // namespace witan
