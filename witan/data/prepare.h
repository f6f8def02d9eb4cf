// Text to token shards: PREFIX.bin, PREFIX.idx and PREFIX.json, which says what they were made from.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "witan/data/corpus.h"
#include "witan/data/sources.h"
#include "witan/data/split.h"
#include "witan/data/text_encoder.h"

namespace witan {

struct PrepareOptions {
  CorpusOptions corpus;  // without a quarantine file: PREFIX.quarantine.jsonl
  SplitOptions split;
  int threads = 1;  // that tokenize; the result does not depend on it
};

struct PartSize {
  int64_t documents = 0, tokens = 0;
  int64_t bytes = 0;  // of text that the tokens stand for
};

struct PreparedDataset {
  fs::path prefix;
  bool reused = false;  // the shards were there and nothing has changed
  CorpusStatistics corpus;
  int64_t tokens = 0;        // with one end of text per document, where the tokenizer has one
  PartSize train, held_out;  // as a run splits it; of less text than it needs, with fewer `least_tokens`
};

struct PrepareProgress {
  uint64_t source_bytes = 0, total_source_bytes = 0;  // on disk
  int64_t documents = 0, tokens = 0;
};

// Tokenizes the sources, unless shards of the same sources (path, size, time of change), tokenizer and options are
// there and whole. `progress` is called every few MiB; what it throws stops the work and leaves no shards behind.
// Throws DataError, CorruptionError, IoError, DiskFullError.
PreparedDataset prepare_dataset(const std::vector<Source>& sources, const TextEncoder& encoder, const fs::path& prefix,
                                PrepareOptions options,
                                const std::function<void(const PrepareProgress&)>& progress = {});

}  // namespace witan
