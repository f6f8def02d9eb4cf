// The files that make up a corpus.
#pragma once

#include <cstdint>
#include <vector>

#include "witan/base/file.h"

namespace witan {

enum class SourceKind { text, jsonl };

struct Source {
  fs::path path;  // absolute
  SourceKind kind = SourceKind::text;
  uint64_t bytes = 0;       // on disk
  int64_t modified_ns = 0;  // Unix time of the last change

  bool operator==(const Source&) const = default;
};

struct Sources {
  std::vector<Source> files;      // sorted by path, each file once
  std::vector<fs::path> skipped;  // found in a folder, but binary
};

// Expands files and folders. Names in .jsonl, .json or .ndjson are rows, all others plain text, each optionally
// with .gz or .zst behind. Folders are walked recursively, without hidden files, symbolic links to folders, or binary
// files (a NUL byte near the start).
// Throws DataError for a missing, unreadable or binary path that was named itself, and when nothing was found.
Sources find_sources(const std::vector<fs::path>& paths);

// English text that Debian ships: the .pod files of the package perl-doc, below `root`/*/pod. Throws DataError, naming
// the ways out, when there are fewer than 150 (perl-doc has 206; perl itself has a handful).
std::vector<fs::path> default_corpus(const fs::path& root = "/usr/share/perl");

}  // namespace witan
