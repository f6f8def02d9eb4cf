#include "witan/train/run/shard_tokenizers.h"

#include <algorithm>
#include <iterator>

#include "witan/base/error.h"
#include "witan/data/megatron/blend.h"
#include "witan/data/shard_tokenizer.h"
#include "witan/train/run/mixture_data.h"

namespace witan {

std::vector<fs::path> shards_of_run(const DataConfig& config) {
  std::vector<fs::path> shards;
  const auto add = [&](const std::string& list, const char* key) {
    if (list.empty()) return;
    for (const std::string& prefix : megatron::parse_blend(list, key).prefixes)
      std::ranges::copy(shards_of(prefix), std::back_inserter(shards));
  };
  if (!config.megatron_samples() && !is_mixture(config)) {
    if (!config.data_path.empty()) shards.emplace_back(config.data_path);
    return shards;
  }
  add(config.data_path, "data_path");
  add(config.train_data_path, "train_data_path");
  add(config.valid_data_path, "valid_data_path");
  add(config.test_data_path, "test_data_path");
  return shards;
}

std::vector<std::string> check_shard_tokenizer(const fs::path& shards, const std::string& key, const DataConfig& config,
                                               const Tokenizer& tokenizer, bool begun) {
  const std::string name = config.tokenizer.empty() ? "the run's tokenizer" : config.tokenizer;
  const auto found = find_tokenizer_mismatch(shards, tokenizer, name);
  if (!found) return {};
  require<ConfigError>(begun || !found->certain, key, ": ", found->message, ". Give the tokenizer of the shards, ",
                       found->own.empty() ? "whose hash `witan tokenizer inspect FILE` shows" : found->own,
                       ", or tokenize the text with this one, to shards of another name (`witan data`)");
  return {found->message};
}

std::vector<std::string> check_shard_tokenizers(const DataConfig& config, const Tokenizer& tokenizer, bool begun) {
  std::vector<std::string> warnings;
  const std::string key = config.data_path.empty() ? "train_data_path" : "data_path";
  for (const fs::path& shards : shards_of_run(config))
    std::ranges::move(check_shard_tokenizer(shards, key, config, tokenizer, begun), std::back_inserter(warnings));
  return warnings;
}

}  // namespace witan
