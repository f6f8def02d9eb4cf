// Distributes rows to several files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "witan/data/corpus/sources.h"

namespace witan {

// How rows are dealt out. At most one of `chunks` above 0 and `fractions` is given; neither: one file.
struct PartOptions {
  int64_t chunks = 0;  // rows in turn, as `split --number=r/CHUNKS` deals them
  // The first rows of each chunk, taken out of it for a validation part in which those of the first chunk come first.
  int64_t valid = 0;
  // Shares of the parts, of their sum. Each row draws its part, so that shares are met up to chance.
  std::vector<double> fractions = {};
  uint64_t seed = 1234;  // of these draws
};

// Immutable.
class Parts {
 public:
  // The files are named after `output`, a path that may end in .jsonl: a.jsonl alone; a.chunk.00.jsonl and so on; with
  // fractions a.train.jsonl, a.val.jsonl, a.test.jsonl where there are two or three, else chunks; and a.val.jsonl for
  // what `valid` takes. Throws ConfigError.
  Parts(const fs::path& output, PartOptions options);

  // Files that grow side by side while rows arrive.
  int64_t streams() const;
  // The stream of row number `rank`, counted from 0.
  int64_t stream_of(int64_t rank) const;

  // A file that is made, and the streams that are laid end to end in it.
  struct File {
    fs::path path;
    std::vector<int64_t> streams;
  };
  const std::vector<File>& files() const { return files_; }
  // Throws UsageError if one of the files is a source.
  void require_apart_from(const std::vector<Source>& sources) const;
  // The fewest rows with which no file of `chunks` and `valid` is empty.
  int64_t least_rows() const;

 private:
  PartOptions options_;
  std::vector<double> ends_;  // of the parts in [0, 1)
  std::vector<File> files_;
};

}  // namespace witan
