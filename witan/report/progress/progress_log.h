// progress.txt: Megatron-LM's record of a run over all its jobs, a line at every start and every checkpoint, fields
// separated by tabs (docs/formats/megatron_log.md).
#pragma once

#include <cstdint>
#include <ctime>

#include "witan/base/files/append_file.h"

namespace witan {

class ProgressLog {
 public:
  // Opens or creates the file. `ranks` and the FLOPs of an iteration, by Megatron-LM's formula, are those of this job.
  // Throws IoError, DiskFullError.
  ProgressLog(const fs::path& path, int64_t ranks, double iteration_flops);

  // What the run has done. `batches`: iterations in words of `iteration_flops`; fewer where its first ones were
  // smaller.
  struct Done {
    int64_t iteration = 0;
    double batches = 0;
    int64_t tokens = 0;
  };

  // "Starting job", after so many batches. Once, before saved().
  void start(std::time_t now, double batches);
  // "Saved checkpoint", with the throughput of this job, and of all jobs since the first one with this number of ranks.
  void saved(std::time_t now, const Done& done);

  // The start of the period over which throughput is computed.
  struct Since {
    std::time_t time = 0;
    double flops = 0;  // done before that
  };

 private:
  void append(std::time_t now, const std::string& text);

  AppendFile file_;
  int64_t ranks_;
  double iteration_flops_;
  Since job_, series_;
};

}  // namespace witan
