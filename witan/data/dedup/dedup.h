// Removes duplicates from a corpus: of each cluster the first document stays, in the order of the sources.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "witan/data/corpus/corpus.h"
#include "witan/data/dedup/duplicate_finder.h"

namespace witan {

struct DedupOptions {
  CorpusOptions corpus;
  DuplicateOptions duplicates;
  int threads = 1;   // the result does not depend on it
  fs::path kept;     // JSON Lines of the documents that stay; empty: they are only counted
  fs::path removed;  // JSON Lines about those that do not; empty: none
};

struct DedupResult {
  CorpusStatistics corpus;
  int64_t exact = 0, near = 0;               // documents removed
  uint64_t exact_bytes = 0, near_bytes = 0;  // of their text
  int64_t clusters = 0;                      // of two documents or more
  int64_t verified_pairs = 0, rejected_pairs = 0;
  uint64_t spilled = 0;  // bytes of keys that were sorted on disk
};

enum class DedupPhase : uint8_t { hashing, comparing, writing };
struct DedupProgress {
  DedupPhase phase{};
  uint64_t source_bytes = 0, total_source_bytes = 0;  // on disk
};

// Rows of JSON Lines stay byte for byte, with all their keys; those of tables become JSON with all their columns
// (TableColumns::whole), unless the text is one of several in a list; a document of another source, and such a text,
// becomes a row with its text under `json_key`. A row of `removed` is {"document", "source", "row", "duplicate",
// "kept": {"document", "source", "row"}}: numbers of documents count from 0 over all sources, without empty and
// unusable ones; rows count from 1 in their file and are null in plain text; "duplicate" is "exact" or "near". Reads
// the sources two times, or three with `least_similarity`; only once if nothing is kept. Files appear whole or not at
// all. Throws what read_corpus() does; DataError also if a source changes meanwhile; ConfigError, IoError,
// DiskFullError.
DedupResult dedup_corpus(const std::vector<Source>& sources, const DedupOptions& options,
                         const std::function<void(const DedupProgress&)>& progress = {});

}  // namespace witan
