// metrics.jsonl: what happened in a run, one event per line (docs/formats/metrics.md).
#pragma once

#include <optional>
#include <vector>

#include "witan/base/append_file.h"
#include "witan/report/events.h"

namespace witan {

// Appends events. Each is one write of one whole line, so a killed process leaves at most a torn last line, which the
// next writer cuts off. One writer per file at a time; not thread-safe.
class MetricsWriter {
 public:
  // Opens or creates the file. Throws IoError.
  explicit MetricsWriter(const fs::path& path);

  // Throws IoError, or DiskFullError when there is no room; the file then still ends with a whole line.
  void append(const Event& event);

  // Goes back to the file as it was when `step` was its last one: cuts it at the first event of a later step, or of a
  // run's end ("measured_memory", "end"). What a run resumed from that step's checkpoint appends then makes the file an
  // undisturbed run's, provided that a step's events are appended before its checkpoint is written. Throws
  // CorruptionError naming the line, IoError.
  void truncate_after(int64_t step);

 private:
  AppendFile file_;
};

// A whole file's events by kind, in file order. A torn last line is ignored.
struct Metrics {
  std::optional<RunEvent> run;  // the last, where there are several; likewise `end`
  std::vector<MemoryEvent> memory;
  std::vector<MeasuredMemoryEvent> measured_memory;
  std::vector<StepEvent> steps;       // step strictly increasing
  std::vector<ExpertsEvent> experts;  // step not decreasing, as for evals, saves and samples
  std::vector<EvalEvent> evals;
  std::vector<BaselineEvent> baselines;
  std::vector<SaveEvent> saves;
  std::vector<SampleEvent> samples;
  std::optional<EndEvent> end;
};

// Throws IoError, and CorruptionError("FILE: line N: why").
Metrics read_metrics(const fs::path& path);

}  // namespace witan
