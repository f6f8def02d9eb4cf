#include "witan/train/data/check_datasets.h"

#include <array>
#include <charconv>

#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/base/text.h"
#include "witan/data/corpus/sources.h"
#include "witan/data/megatron/blend.h"
#include "witan/train/data/mixture_data.h"

namespace witan {
namespace {

// A number where a prefix is expected is a weight whose dataset, or another's weight, is missing.
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

void check_datasets(const DataConfig& config) {
  check_paths(config);
  if (config.is_weighted()) check_weights(config);
}

}  // namespace witan
