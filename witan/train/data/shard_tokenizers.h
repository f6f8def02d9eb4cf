// Refuses token shards that were made with another tokenizer than a run has: its ids would stand for other tokens.
#pragma once

#include <string>
#include <vector>

#include "witan/tokenizer/tokenizer.h"
#include "witan/train/config/config.h"

namespace witan {

// Of every pair that data_path, or train_data_path, valid_data_path and test_data_path, name. Returns warnings of
// shards that may have been made with another tokenizer. Throws ConfigError, naming shards, both tokenizers and the way
// out, where that is certain; of a run that has `begun` it is a warning, too. Shards whose tokenizer is not known, as
// Megatron-LM's, are accepted.
std::vector<std::string> check_shard_tokenizers(const DataConfig& config, const Tokenizer& tokenizer, bool begun);

// Likewise of one path of tokens that `key` names.
std::vector<std::string> check_shard_tokenizer(const fs::path& shards, const std::string& key, const DataConfig& config,
                                               const Tokenizer& tokenizer, bool begun);

}  // namespace witan
