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

// A tokenizer is trained on the first bytes of the corpus. More would hardly change it.
inline constexpr uint64_t kTokenizerText = 256 << 20;

// Reads the sources and trains a byte-level BPE on them; reports to `progress`. Throws ConfigError, DataError,
// CorruptionError, IoError.
Tokenizer train_tokenizer(const BpeTrainerConfig& config, const std::vector<Source>& sources,
                          const CorpusOptions& options, Progress& progress);

// The tokenizer in `path` if its record, tokenizer_record(), says that it was trained on the same sources (path, size,
// time of change) with the same options; otherwise trains one and writes both files. Reports to `progress` what it
// does, and why it does not use an existing file. Files of a start that ended early are thus never mistaken for
// complete ones. Throws what train_tokenizer() throws, and DiskFullError.
Tokenizer trained_tokenizer(const fs::path& path, const BpeTrainerConfig& config, const std::vector<Source>& sources,
                            const CorpusOptions& options, Progress& progress);

// Throws ConfigError, with the way out, if trained_tokenizer() would overwrite a file that it has not written.
// `option` is the flag that names the path.
void check_own_tokenizer(const fs::path& path, const std::string& option);

// The record of the sources and options that the tokenizer in `path` was trained with (docs/formats/tokenizer_json.md).
fs::path tokenizer_record(const fs::path& path);

// Bytes of the files on disk.
uint64_t total_bytes(const std::vector<Source>& sources);

// Checks the tokenizer of all shards that data_path, or train_data_path, valid_data_path and test_data_path, name.
// Returns a warning for shards that may have been made with another tokenizer. Throws ConfigError, naming shards, both
// tokenizers and the way out, if that is certain; for a run that has `begun` this, too, is a warning. Shards of unknown
// tokenizers, such as Megatron-LM's, are accepted.
std::vector<std::string> check_shard_tokenizers(const DataConfig& config, const Tokenizer& tokenizer, bool begun);

// Checks one path of tokens, which `key` names.
std::vector<std::string> check_shard_tokenizer(const fs::path& shards, const std::string& key, const DataConfig& config,
                                               const Tokenizer& tokenizer, bool begun);

}  // namespace witan
