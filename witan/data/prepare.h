// Converts text to token shards: PREFIX.bin, PREFIX.idx and PREFIX.json, which records what they were made from.
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
  int threads = 1;  // threads that tokenize; the result does not depend on it
};

struct PartSize {
  int64_t documents = 0, tokens = 0;
  int64_t bytes = 0;  // of text that the tokens encode
};

struct PreparedDataset {
  fs::path prefix;
  bool reused = false;  // existing shards of the same inputs were reused
  CorpusStatistics corpus;
  int64_t tokens = 0;        // including one end-of-text token per document, if the tokenizer has one
  PartSize train, held_out;  // the splits of a run; if there is too little text, with a smaller `least_tokens`
};

struct PrepareProgress {
  uint64_t source_bytes = 0, total_source_bytes = 0;  // on disk
  int64_t documents = 0, tokens = 0;
};

// Tokenizes the sources, unless intact shards of the same sources (path, size, modification time), tokenizer and
// options exist. `progress` is called every few MiB; if it throws, the work stops and leaves no shards behind. Throws
// DataError, CorruptionError, IoError, DiskFullError.
PreparedDataset prepare_dataset(const std::vector<Source>& sources, const TextEncoder& encoder, const fs::path& prefix,
                                PrepareOptions options,
                                const std::function<void(const PrepareProgress&)>& progress = {});

}  // namespace witan
