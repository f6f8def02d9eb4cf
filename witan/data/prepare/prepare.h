// Converts text to token shards: PREFIX.bin, PREFIX.idx and PREFIX.json, which records what they were made from.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "witan/data/corpus/corpus.h"
#include "witan/data/corpus/sources.h"
#include "witan/data/datasets/split.h"
#include "witan/data/prepare/text_encoder.h"

namespace witan {

struct PrepareOptions {
  CorpusOptions corpus;  // without a quarantine file: PREFIX.quarantine.jsonl
  // How the sources were found. It is recorded with the shards, which are made again when it changes.
  SourceSelection selection;
  SplitOptions split;
  int threads = 1;                  // threads that tokenize; the result does not depend on it
  uint64_t piece_bytes = 32 << 20;  // of text: at most so much is tokenized again after a kill
  bool measure_split = true;        // else `train` and `held_out` stay empty: a pass over the tokens less
  // Called before existing shards are replaced, with the settings that differed when those were made: "append_eod",
  // "rows.jsonl has changed", ... (ShardManifest::changes()).
  std::function<void(const std::vector<std::string>& changes)> replacing = {};
  // Called before what an interrupted call has left (PREFIX.partial.*) is dropped, since it was made otherwise or is
  // damaged.
  std::function<void()> dropping = {};
};

struct PartSize {
  int64_t documents = 0, tokens = 0;
  int64_t bytes = 0;  // of text that the tokens encode
};

struct PreparedDataset {
  fs::path prefix;
  bool reused = false;         // existing shards of the same inputs were reused
  int64_t resumed_tokens = 0;  // an earlier call had left
  CorpusStatistics corpus;
  int64_t tokens = 0;        // including one end-of-text token per document, if the tokenizer has one
  PartSize train, held_out;  // the splits of a run; if there is too little text, with a smaller `least_tokens`
};

struct PrepareProgress {
  uint64_t source_bytes = 0, total_source_bytes = 0;  // on disk
  int64_t documents = 0, tokens = 0;
  uint64_t text_bytes = 0;     // tokenized since this call began
  uint64_t resumed_bytes = 0;  // of source_bytes: done by an earlier call, about
  int64_t resumed_tokens = 0;  // of tokens: likewise
};

// "d/rows.bin was made otherwise (append_eod): made anew", for the arguments of `replacing`.
std::string describe_replacing(const fs::path& prefix, const std::vector<std::string>& changes);

// "d/rows.partial.*, which an interrupted call left, ...: dropped, and tokenized anew", when `dropping` is called.
std::string describe_dropping(const fs::path& prefix);

// Tokenizes the sources, unless intact shards of the same sources (path, size, modification time), tokenizer and
// options exist. A call continues where one that was killed or that threw had stopped (PREFIX.partial.*), and ends with
// the same bytes. `progress` is called every few MiB; if it throws, the work stops and leaves no shards. Throws
// DataError, CorruptionError, IoError (also while another process prepares the same), DiskFullError; ConfigError before
// any work if PREFIX.columns has values for tokens that would be replaced.
PreparedDataset prepare_dataset(const std::vector<Source>& sources, const TextEncoder& encoder, const fs::path& prefix,
                                PrepareOptions options,
                                const std::function<void(const PrepareProgress&)>& progress = {});

}  // namespace witan
