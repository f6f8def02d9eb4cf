// Shuffles corpora that are larger than memory, by an external sort on random keys.
//
// The key of a row is 128 bits of Philox, whose counter is (file, position in it) and whose key is the seed: a
// bijection, so that no two rows have the same one, and a pure function of the row's place, so that who reads it does
// not matter. Rows sorted by key are in random order. Readers fill their share of the memory, sort it and write a run;
// then ranges of keys are read from all runs, sorted and written one after another.
#pragma once

#include <functional>
#include <vector>

#include "witan/data/rows/row_job.h"
#include "witan/data/rows/sorted_run.h"

namespace witan {

// Room on the disk: of the runs until the end, and of the output.
struct ShuffleRoom {
  uint64_t runs = 0, output = 0;
  fs::path runs_folder, output_folder;
};

struct ShuffleOptions {
  RowOptions rows;
  PartOptions parts;
  uint64_t seed = 1234;
  uint64_t memory = 2'000'000'000;  // bytes of rows in memory, all workers together
  int workers = 1;                  // threads that read sources and sort; neither of the two changes the result
  fs::path temp = {};               // folder for runs; empty: beside the output
  std::function<void(const ShuffleRoom&)> begins = {};  // called before anything is written
};

// The key of the row at `position` of source number `source`.
RowKey shuffle_key(uint64_t seed, size_t source, int64_t position);

// Unusable rows are counted and kept in OUTPUT.quarantine.jsonl. What a killed process has begun goes on where it was,
// to the same bytes. Throws as copy_rows() does, and DiskFullError if there is too little room to begin.
MadeRows shuffle_rows(const std::vector<Source>& sources, const fs::path& output, const ShuffleOptions& options,
                      const ReportRowProgress& progress = {});

}  // namespace witan
