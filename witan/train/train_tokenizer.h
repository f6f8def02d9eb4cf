// A tokenizer for a corpus.
#pragma once

#include "witan/data/corpus.h"
#include "witan/report/progress.h"
#include "witan/tokenizer/bpe_trainer.h"

namespace witan {

// Bytes of text that a tokenizer learns from: the first ones of the corpus. More does not change it much.
inline constexpr uint64_t kTokenizerText = 256 << 20;

// Reads the sources and trains a byte-level BPE on them; says so on `progress`. Throws ConfigError, DataError,
// CorruptionError, IoError.
Tokenizer train_tokenizer(const BpeTrainerConfig& config, const std::vector<Source>& sources,
                          const CorpusOptions& options, Progress& progress);

// Bytes on disk.
uint64_t total_bytes(const std::vector<Source>& sources);

}  // namespace witan
