#include "witan/train/data/mixture_data.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <set>
#include <sstream>

#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/base/text.h"
#include "witan/data/corpus/sources.h"
#include "witan/data/datasets/conversation_dataset.h"
#include "witan/data/datasets/split.h"
#include "witan/data/megatron/blend.h"
#include "witan/train/data/run_data.h"
#include "witan/train/data/run_samples.h"

namespace witan {
namespace {

template <class Number>
std::optional<Number> number_of(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

struct Dataset {
  std::vector<MixedSamples::Source> train, held_out;
};

// The weight of each source: its dataset's, in proportion to its share of the dataset's samples.
std::vector<double> of_sources(const std::vector<Dataset>& datasets, const std::vector<double>& weights,
                               std::vector<MixedSamples::Source> Dataset::*part) {
  std::vector<double> spread;
  for (size_t d = 0; d < datasets.size(); ++d) {
    double all = 0;
    for (const auto& source : datasets[d].*part) all += static_cast<double>(source.samples->per_epoch());
    for (const auto& source : datasets[d].*part)
      spread.push_back(weights[d] * static_cast<double>(source.samples->per_epoch()) / all);
  }
  return spread;
}

std::vector<MixedSamples::Source> joined(const std::vector<Dataset>& datasets,
                                         std::vector<MixedSamples::Source> Dataset::*part) {
  std::vector<MixedSamples::Source> all;
  for (const Dataset& dataset : datasets) all.insert(all.end(), (dataset.*part).begin(), (dataset.*part).end());
  return all;
}

// The phase in which all sources end together.
MixturePhase by_size(const std::vector<Dataset>& datasets, std::vector<MixedSamples::Source> Dataset::*part) {
  MixturePhase phase;
  for (const MixedSamples::Source& source : joined(datasets, part))
    phase.weights.push_back(static_cast<double>(source.samples->per_epoch()));
  return phase;
}

std::vector<double> tempered(std::vector<double> weights, double temperature) {
  if (temperature != 1)
    for (double& weight : weights) weight = weight > 0 ? std::pow(weight, 1 / temperature) : 0;
  return weights;
}

std::vector<double> sizes_of(const std::vector<Dataset>& datasets) {
  std::vector<double> sizes;
  for (const Dataset& dataset : datasets) {
    sizes.push_back(0);
    for (const auto& source : dataset.train) sizes.back() += static_cast<double>(source.samples->per_epoch());
  }
  return sizes;
}

std::vector<double> mixing_weights(const ScheduledWeights& given, const DataConfig& config,
                                   const std::vector<Dataset>& datasets) {
  if (!given.epochs) return given.weights;
  require<ConfigError>(config.data_temperature == 1, "data_temperature = ", config.data_temperature,
                       " would change the epochs that datasets are to be read: give weights instead of them, or set "
                       "data_temperature = 1");
  std::vector<double> weights = sizes_of(datasets);
  for (size_t d = 0; d < weights.size(); ++d) weights[d] *= given.weights[d];
  return weights;
}

std::vector<double> first_weights(const DataConfig& config, const megatron::Blend& blend,
                                  const std::vector<Dataset>& datasets) {
  if (!config.data_weights.empty())
    return mixing_weights(parse_data_weights(config.data_weights, "data_weights", datasets.size()), config, datasets);
  return blend.weights.empty() ? sizes_of(datasets) : blend.weights;
}

// A number in the place of a prefix is a weight without its dataset, or shows that another weight is missing.
void check_prefixes(const megatron::Blend& blend, const std::string& key) {
  if (blend.prefixes.size() < 2) return;
  for (const std::string& prefix : blend.prefixes) {
    double number = 0;
    const char* end = prefix.data() + prefix.size();
    std::error_code absent;
    const bool is_number = std::from_chars(prefix.data(), end, number).ptr == end;
    require<ConfigError>(!is_number || fs::exists(prefix, absent) || fs::exists(prefix + ".bin", absent), key, ": ",
                         clipped(prefix), " stands in the place of a dataset, and there is no ", clipped(prefix),
                         ".bin: if it is a weight, write weights and prefixes by turns, a weight before each prefix, "
                         "or prefixes alone");
  }
}

void check_paths(const DataConfig& config) {
  megatron::parse_split(config.split);
  const std::array<std::pair<const char*, const std::string*>, 4> paths = {
      {{"data_path", &config.data_path},
       {"train_data_path", &config.train_data_path},
       {"valid_data_path", &config.valid_data_path},
       {"test_data_path", &config.test_data_path}}};
  std::error_code absent;
  for (const auto& [key, list] : paths)
    if (!list->empty() && !fs::exists(*list, absent)) check_prefixes(megatron::parse_blend(*list, key), key);
}

void check_weights(const DataConfig& config) {
  const std::string& path = config.data_path;
  const megatron::Blend blend = path.empty() ? megatron::Blend{} : megatron::parse_blend(path, "data_path");
  const size_t datasets = path.empty() ? paths_of({config.data}).size() : blend.prefixes.size();
  require<ConfigError>(config.data_weights.empty() || blend.weights.empty(),
                       "data_weights = ", clipped(config.data_weights),
                       ", and data_path has weights of its own: give one of the two");
  if (!config.data_weights.empty()) parse_data_weights(config.data_weights, "data_weights", datasets);
  parse_data_schedule(config.data_schedule, datasets);
}

}  // namespace

bool is_mixture(const DataConfig& config) {
  const std::string& path = config.data_path;
  if (config.megatron_samples()) return false;
  if (config.is_weighted()) return true;
  if (path.empty()) return false;
  std::error_code error;
  if (fs::is_directory(path, error)) return !fs::exists(path + ".bin", error);
  return path.find(',') != std::string::npos && !fs::exists(path, error) && !fs::exists(path + ".bin", error);
}

std::vector<fs::path> shards_of(const std::string& prefix_or_folder) {
  std::error_code error;
  if (!fs::is_directory(prefix_or_folder, error)) return {prefix_or_folder};
  std::set<std::string> names;  // testing each for existence is slow if there are many
  for (const auto& file : fs::directory_iterator(prefix_or_folder)) names.insert(file.path().filename().string());
  std::vector<fs::path> shards;
  for (const std::string& name : names) {
    if (!name.ends_with(".bin")) continue;
    const std::string stem = name.substr(0, name.size() - std::strlen(".bin"));
    if (!stem.ends_with(kLossSuffix))
      shards.push_back(fs::path(prefix_or_folder) / (names.contains(stem + ".idx") ? stem : name));
  }
  require<DataError>(!shards.empty(), "data_path: the folder ", prefix_or_folder, " holds no .bin file of tokens");
  std::ranges::sort(shards);
  return shards;
}

std::vector<TextPart> text_parts(const DataConfig& config, const fs::path& prefix) {
  std::vector<TextPart> parts;
  for (const fs::path& text : paths_of({config.data}))
    parts.push_back({text, cat(prefix.string(), '-', parts.size() + 1)});
  return parts;
}

ScheduledWeights parse_data_weights(const std::string& weights, const std::string& key, size_t datasets) {
  ScheduledWeights parsed;
  size_t epochs = 0;
  std::istringstream pieces(weights);
  for (std::string piece; std::getline(pieces, piece, ',');) {
    const std::string given = piece;
    while (piece.ends_with(' ')) piece.pop_back();
    if (piece.ends_with('x')) {
      piece.pop_back();
      ++epochs;
    }
    const auto weight = number_of<double>(piece);
    require<ConfigError>(weight && *weight >= 0 && std::isfinite(*weight), key, " = ", clipped(weights), ": ",
                         clipped(given), " is not a number from 0 on: give a weight for each dataset, as 3,1");
    parsed.weights.push_back(*weight);
  }
  require<ConfigError>(parsed.weights.size() == datasets, key, " = ", clipped(weights), ": ",
                       counted(static_cast<int64_t>(parsed.weights.size()), "weight"), " for ",
                       counted(static_cast<int64_t>(datasets), "dataset"),
                       ": give one for each, with commas between them");
  require<ConfigError>(std::ranges::any_of(parsed.weights, [](double weight) { return weight > 0; }), key, " = ",
                       clipped(weights), ": no dataset has a weight above 0");
  require<ConfigError>(epochs == 0 || epochs == datasets, key, " = ", clipped(weights),
                       ": some are epochs, as 2x, and some are weights: write all as one of them");
  parsed.epochs = epochs > 0;
  return parsed;
}

std::vector<ScheduledWeights> parse_data_schedule(const std::string& schedule, size_t datasets) {
  std::vector<ScheduledWeights> phases;
  std::istringstream pieces(schedule);
  for (std::string piece; std::getline(pieces, piece, ';');) {
    const size_t equals = piece.find('=');
    const int64_t step = equals == piece.npos ? 0 : number_of<int64_t>(piece.substr(0, equals)).value_or(0);
    require<ConfigError>(step > (phases.empty() ? 1 : phases.back().step), "data_schedule: ", clipped(piece),
                         " is not STEP=W1,W2 with a step after the one before it, and after the first");
    phases.push_back(parse_data_weights(piece.substr(equals + 1), cat("data_schedule from step ", step), datasets));
    phases.back().step = step;
  }
  return phases;
}

MixtureData open_mixture(const RunConfig& config, const fs::path& prefix, std::optional<int32_t> end_of_text) {
  const DataConfig& data = config.data;
  const auto seed = static_cast<uint64_t>(config.train.seed);
  megatron::Blend blend;
  std::vector<std::string> names;
  if (data.data_path.empty()) {
    for (const TextPart& part : text_parts(data, prefix)) {
      blend.prefixes.push_back(part.tokens.string());
      names.push_back(part.text.string());
    }
  } else {
    blend = megatron::parse_blend(data.data_path, "data_path");
    names = blend.prefixes;
  }
  MixtureData mixture;
  std::vector<Dataset> datasets;
  std::vector<size_t> shards;  // of each dataset
  for (const std::string& prefix_or_folder : blend.prefixes) {
    const std::vector<fs::path> found = shards_of(prefix_or_folder);
    mixture.prefixes.insert(mixture.prefixes.end(), found.begin(), found.end());
    shards.push_back(found.size());
  }
  const auto opened = open_all_tokens(mixture.prefixes, end_of_text);
  for (auto [i, shard] = std::pair<size_t, size_t>(0, 0); i < names.size(); ++i) {
    Dataset& dataset = datasets.emplace_back();
    for (const size_t end = shard + shards[i]; shard < end; ++shard) {
      require_kind_of_shards(data, *opened[shard]);
      const Split split = split_documents(opened[shard], split_options(data));
      const auto samples = [&](const auto& part, bool shuffle) { return open_samples(part, data, seed, shuffle); };
      dataset.train.push_back({names[i], samples(split.train, true)});
      dataset.held_out.push_back({names[i], samples(split.held_out, false)});
    }
  }
  const BatchRamp ramp = config.batch_ramp();
  const auto phase = [&](int64_t step, const std::vector<double>& weights, auto part) {
    return MixturePhase{ramp.consumed_by(step - 1),
                        of_sources(datasets, tempered(weights, data.data_temperature), part)};
  };
  const std::vector<double> first = first_weights(data, blend, datasets);
  std::vector<MixturePhase> phases = {phase(1, first, &Dataset::train)};
  for (const ScheduledWeights& later : parse_data_schedule(data.data_schedule, datasets.size()))
    phases.push_back(phase(later.step, mixing_weights(later, data, datasets), &Dataset::train));
  mixture.train =
      std::make_shared<MixedSamples>(joined(datasets, &Dataset::train), std::move(phases), data.data_max_epochs, seed);
  const bool whole = config.train.full_validation;
  mixture.held_out = std::make_shared<MixedSamples>(
      joined(datasets, &Dataset::held_out),
      std::vector{whole ? by_size(datasets, &Dataset::held_out) : phase(1, first, &Dataset::held_out)}, whole ? 1 : 0,
      seed);
  const int64_t wanted = ramp.consumed_by(config.train.train_iters);
  require<DataError>(mixture.train->size().value_or(wanted) >= wanted, "the run takes ", wanted,
                     " samples, and the data have ", mixture.train->size().value_or(0),
                     " within data_max_epochs = ", data.data_max_epochs,
                     ": raise it, lower train_iters, or give more data");
  return mixture;
}

void check_datasets(const DataConfig& config) {
  check_paths(config);
  if (config.is_weighted()) check_weights(config);
}

}  // namespace witan
