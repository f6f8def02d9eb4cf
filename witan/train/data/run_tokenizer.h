// The tokenizer of a run: trained on its text, or checked against the token shards that the run reads.
#pragma once

#include <string>
#include <vector>

#include "witan/data/corpus/corpus.h"
#include "witan/report/progress/progress.h"
#include "witan/tokenizer/tokenizer.h"
#include "witan/tokenizer/training/bpe_trainer.h"
#include "witan/train/config/config.h"

namespace witan {

// Bytes of text that a tokenizer learns from: the first ones of the corpus. More does not change it much.
inline constexpr uint64_t kTokenizerText = 256 << 20;

// Reads the sources and trains a byte-level BPE on them; says so on `progress`. Throws ConfigError, DataError,
// CorruptionError, IoError.
Tokenizer train_tokenizer(const BpeTrainerConfig& config, const std::vector<Source>& sources,
                          const CorpusOptions& options, Progress& progress);

// The tokenizer in `path` if it was trained on these very sources (path, size, time of change) with these options, as
// the file beside it, tokenizer_record(), says; else trains one, and writes both. Says on `progress` what it does, and
// why a file that is there is not taken. Whatever a start that ended early has left decides nothing so. Throws what
// train_tokenizer() throws, and DiskFullError.
Tokenizer trained_tokenizer(const fs::path& path, const BpeTrainerConfig& config, const std::vector<Source>& sources,
                            const CorpusOptions& options, Progress& progress);

// Throws ConfigError, with the way out, if trained_tokenizer() would overwrite a file that it has not written;
// `option`: the flag that names the place.
void check_own_tokenizer(const fs::path& path, const std::string& option);

// Where it stands what the tokenizer in `path` was trained on: docs/formats/tokenizer_json.md.
fs::path tokenizer_record(const fs::path& path);

// Bytes on disk.
uint64_t total_bytes(const std::vector<Source>& sources);

// Of every pair that data_path, or train_data_path, valid_data_path and test_data_path, name. Returns warnings of
// shards that may have been made with another tokenizer. Throws ConfigError, naming shards, both tokenizers and the way
// out, where that is certain; of a run that has `begun` it is a warning, too. Shards whose tokenizer is not known, as
// Megatron-LM's, are accepted.
std::vector<std::string> check_shard_tokenizers(const DataConfig& config, const Tokenizer& tokenizer, bool begun);

// Likewise of one path of tokens that `key` names.
std::vector<std::string> check_shard_tokenizer(const fs::path& shards, const std::string& key, const DataConfig& config,
                                               const Tokenizer& tokenizer, bool begun);

}  // namespace witan
