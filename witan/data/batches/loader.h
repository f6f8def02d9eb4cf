// Produces global batches in order, in background threads ahead of their use. Files are read by these threads alone,
// and all that a global batch needs is asked for at once (SampleSource::prefetch), so that steps wait for no data
// unless a global batch takes the disk longer than the model.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "witan/data/batches/batch.h"
#include "witan/data/batches/batch_ramp.h"

namespace witan {

struct LoaderOptions {
  int64_t micro_batch_size = 1;        // sequences
  int64_t global_batch_size = 1;       // sequences, over all data-parallel ranks and accumulations
  std::optional<BatchRamp> ramp = {};  // its sizes, step by step; none: always global_batch_size
  int64_t data_parallel_rank = 0, data_parallel_size = 1;
  int64_t prefetch = 2;  // global batches made ahead
  int64_t threads = 1;   // that make micro-batches; the batches do not depend on it
  BatchOptions batch = {};
};

// A global batch takes global_batch_size samples from the cursor on, or as many as the ramp says there. Its micro-batch
// j is samples [j*B, (j+1)*B) of those, in every layout; a rank that accumulates A of them takes A consecutive ones
// from j = rank * A on. So a checkpoint only needs the cursor, the number of samples consumed.
//
// One caller at a time. Loaders of several ranks may share one Samples.
class Loader {
 public:
  // Starts at `consumed_samples`. Throws ConfigError if a global batch is not divisible by ranks and micro-batch size.
  Loader(std::shared_ptr<const SampleSource> samples, LoaderOptions options, int64_t consumed_samples = 0);
  // Returns promptly: at most one micro-batch in each thread is still being made.
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // This rank's micro-batches of the next global batch, [accumulations]. Waits if the threads are behind; throws the
  // error of a batch that could not be made, also in every later call.
  std::vector<Batch> next();

  // Samples of the global batches that next() has returned, over all ranks.
  int64_t consumed_samples() const;
  // Micro-batches that next() returns next.
  int64_t accumulations() const;
  // Time that next() has spent waiting.
  double waited_seconds() const;

 private:
  struct Worker;
  std::unique_ptr<Worker> worker_;
};

}  // namespace witan
