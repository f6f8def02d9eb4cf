// Global batches in order, made by a background thread ahead of need.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "witan/data/batch.h"

namespace witan {

struct LoaderOptions {
  int64_t micro_batch_size = 1;   // sequences
  int64_t global_batch_size = 1;  // sequences, over all data-parallel ranks and accumulations
  int64_t data_parallel_rank = 0, data_parallel_size = 1;
  int64_t prefetch = 2;  // global batches made ahead
  BatchOptions batch = {};
};

// A global batch takes global_batch_size samples from the cursor on. Its micro-batch j is samples [j*B, (j+1)*B) of
// those, whatever the layout; a rank that accumulates A of them holds the run from j = rank * A on. So the cursor, the
// number of samples consumed, is all that a checkpoint needs.
//
// One caller at a time. Loaders of several ranks may share one Samples.
class Loader {
 public:
  // Starts at `consumed_samples`. Throws ConfigError when the batch sizes and ranks do not divide.
  Loader(std::shared_ptr<const Samples> samples, LoaderOptions options, int64_t consumed_samples = 0);
  // Prompt: at most one micro-batch is still being made.
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // This rank's micro-batches of the next global batch, [accumulations]. Waits where the thread is behind; throws what
  // stopped the thread, then and in every later call.
  std::vector<Batch> next();

  // Samples of the global batches that next() has returned, over all ranks.
  int64_t consumed_samples() const;
  // Micro-batches per call of next().
  int64_t accumulations() const;
  // Time that next() has spent waiting.
  double waited_seconds() const;

 private:
  struct Worker;
  std::unique_ptr<Worker> worker_;
};

}  // namespace witan
