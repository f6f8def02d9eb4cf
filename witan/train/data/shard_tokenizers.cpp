#include "witan/train/data/shard_tokenizers.h"

#include <algorithm>
#include <iterator>

#include "witan/base/error.h"
#include "witan/data/megatron/blend.h"
#include "witan/data/prepare/shard_manifest.h"
#include "witan/train/data/mixture_data.h"

namespace witan {

namespace {

struct NamedShards {
  std::string key;
  fs::path shards;
};

// Every pair that data_path, or train_data_path, valid_data_path and test_data_path, name.
std::vector<NamedShards> shards_of_run(const DataConfig& config) {
  std::vector<NamedShards> all;
  const auto add = [&](const std::string& list, const char* key) {
    if (list.empty()) return;
    for (const std::string& prefix : megatron::parse_blend(list, key).prefixes)
      for (const fs::path& shards : shards_of(prefix)) all.push_back({key, shards});
  };
  if (!config.megatron_samples() && !is_mixture(config)) {
    if (!config.data_path.empty()) all.push_back({"data_path", config.data_path});
    return all;
  }
  add(config.data_path, "data_path");
  add(config.train_data_path, "train_data_path");
  add(config.valid_data_path, "valid_data_path");
  add(config.test_data_path, "test_data_path");
  return all;
}

}  // namespace

std::vector<std::string> check_shard_tokenizer(const fs::path& shards, const std::string& key, const DataConfig& config,
                                               const Tokenizer& tokenizer, bool begun) {
  const std::string name = begun || config.tokenizer.empty() ? "the run's tokenizer" : config.tokenizer;
  const auto found = find_tokenizer_mismatch(shards, tokenizer, name);
  if (!found) return {};
  require<ConfigError>(begun || !found->certain, key, ": ", found->message, ". Give the tokenizer of the shards, ",
                       found->own.empty() ? "whose hash `witan tokenizer inspect FILE` shows" : found->own,
                       ", or tokenize the text with this one, to shards of another name (`witan data`)");
  return {found->message};
}

std::vector<std::string> check_shard_tokenizers(const DataConfig& config, const Tokenizer& tokenizer, bool begun) {
  std::vector<std::string> warnings;
  for (const auto& [key, shards] : shards_of_run(config))
    std::ranges::move(check_shard_tokenizer(shards, key, config, tokenizer, begun), std::back_inserter(warnings));
  return warnings;
}

}  // namespace witan
