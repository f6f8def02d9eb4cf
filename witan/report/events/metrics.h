// metrics.jsonl: the events of a run, one per line (docs/formats/metrics.md).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/base/files/growing_file.h"
#include "witan/report/events/curve.h"
#include "witan/report/events/events.h"

namespace witan {

// Appends events. Each is one write of one complete line, so a killed process leaves at most a torn last line, which
// the next writer truncates. One writer per file at a time; not thread-safe.
class MetricsWriter {
 public:
  // Opens or creates the file. Throws IoError.
  explicit MetricsWriter(const fs::path& path);

  // Throws IoError, or DiskFullError if the disk is full; the file then still ends with a complete line.
  void append(const Event& event);

  // Restores the file to its state when `step` was its last step: truncates it at the first event of a later step, or
  // at the end of a run ("measured_memory", "end"). A run resumed from that step's checkpoint then makes it equal to
  // the file of an undisturbed run, provided that a step's events are appended, and flushed, before its checkpoint is
  // complete. Zero bytes after an event of `step` stand where lines were not flushed when the power failed: the file
  // is truncated there, too. It is read from its end to the last line of a step that stays, so that it takes as long
  // as what is cut off is long. Throws CorruptionError naming the byte of a line of that part, IoError.
  void truncate_after(int64_t step);

 private:
  AppendFile file_;
};

// A whole file's events by kind, in file order. A torn last line is ignored.
struct Metrics {
  std::optional<RunEvent> run;  // the last one, if there are several; likewise `end`
  std::vector<MemoryEvent> memory;
  std::vector<MeasuredMemoryEvent> measured_memory;
  std::vector<StepEvent> steps;                             // step strictly increasing
  std::vector<ExpertsEvent> experts;                        // step not decreasing, likewise evals, saves and samples
  std::vector<LayersEvent> layers;                          // likewise
  std::vector<ActivationsEvent> activations;                // likewise
  std::vector<GpusEvent> gpus;                              // likewise
  std::vector<EvalEvent> evals;                             // on the validation split
  std::map<std::string, std::vector<EvalEvent>> set_evals;  // on sets of one's own, by name
  std::vector<BaselineEvent> baselines;
  std::vector<SaveEvent> saves;
  std::vector<SampleEvent> samples;
  std::vector<AnomalyEvent> anomalies;  // likewise
  std::vector<ResumeEvent> resumes;     // likewise
  std::optional<EndEvent> end;
};

// Adds the event that comes next in a file. Throws CorruptionError("WHERE: why") where its step comes too early.
void add_event(Metrics& metrics, Event event, std::string_view where);

// Throws IoError, and CorruptionError("FILE: line N: why").
Metrics read_metrics(const fs::path& path);

// If at most `most` of many events are kept, the first most / kHeadShare are all kept, since they take as much of a
// logarithmic x axis as all others.
constexpr int64_t kHeadShare = 50;

// Reads at most `most` (>= 1) step events: the first most / kHeadShare, and then others, evenly spread and with the
// last one; and as many experts, layers, activations and gpus events. All other events are read. Most lines of a long
// file are skipped without parsing, so that damage in them is not found.
Metrics read_thinned_metrics(const fs::path& path, int64_t most);

// Lines of a file that are no events, or stand where their step cannot be.
struct DamagedLines {
  int64_t count = 0, of = 0;  // of so many lines
  std::string first;          // "FILE: line N: why"; empty: none
};

// "2 of the 9 lines of FILE cannot be read and are left out; the first: FILE: line 3: why".
std::string describe(const DamagedLines& damaged, const fs::path& path);

// Like read_metrics(), but skips lines that cannot be read. Throws IoError.
Metrics read_undamaged_metrics(const fs::path& path, DamagedLines& damaged);

// The size to which MetricsWriter::truncate_after(step) would cut the file. Throws as that does.
uint64_t bytes_until(const fs::path& path, int64_t step);

// Throws CorruptionError("FILE: byte N: why") where a line before `end` is damaged, as fast as a file is read and in a
// few MiB of memory. Lines of which each step may have one are not parsed: of these, what is found is bytes that were
// lost or joined to others, and a step that comes too early, but not each byte that was changed.
void check_metrics(const fs::path& path, uint64_t end = UINT64_MAX);

// The `run` of read_metrics(), for a file of any length in a few MiB of memory. Throws IoError, and CorruptionError for
// a damaged run event.
std::optional<RunEvent> last_run_event(const fs::path& path);

// Makes the file one of those lines, and of steps up to `step` as MetricsWriter::truncate_after has it. What it was is
// kept as FILE.damaged. Throws IoError.
DamagedLines repair_metrics(const fs::path& path, int64_t step);

// The state of a run, read from the end of a long metrics.jsonl within milliseconds: the last event of each kind, for
// evaluations the last one on the validation split. `run` is the file's first run event if the last one is further from
// the end than kTail.
struct MetricsStanding {
  std::optional<RunEvent> run;
  std::optional<StepEvent> step;
  std::optional<EvalEvent> eval;  // nothing where it stands further from the end than kTail
  std::optional<EndEvent> end;    // only where nothing comes after it
  std::string damage;  // "FILE: byte N: why" of a line that cannot be read, of those looked at; it is passed over
  static constexpr size_t kTail = size_t{64} << 20;  // bytes
};

// Throws IoError.
MetricsStanding read_standing(const fs::path& path);

// The last checkpoint that is recorded as complete; lines that cannot be read are passed over. Throws IoError.
std::optional<SaveEvent> read_last_save(const fs::path& path);

// Finite losses over steps, nats per token: each recorded step's, and each evaluation's on the validation split. They
// are taken from lines as format_event() writes them, within a second or two for 1e6 steps.
struct LossCurves {
  Curve training, validation;
  std::string damage;  // of the first line that cannot be read, as of MetricsStanding
};

// Throws IoError.
LossCurves read_losses(const fs::path& path);

}  // namespace witan
