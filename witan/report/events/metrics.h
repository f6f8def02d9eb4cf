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
  // complete. Zero bytes behind an event of `step` stand where lines were not flushed when the power failed: the file
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

// Of `most` events that are kept of many, the first one in so many are kept as they are: a logarithmic x axis shows
// them as wide as all others.
constexpr int64_t kHeadShare = 50;

// The same with at most `most` (>= 1) of its step events: the first most / kHeadShare, and others behind them, evenly
// spread and with the last one; and as many of its experts, layers, activations and gpus events. All others are whole.
// Of a long file most lines are passed over unread, which damage in them survives.
Metrics read_thinned_metrics(const fs::path& path, int64_t most);

// Lines of a file that are no events, or stand where their step cannot be.
struct DamagedLines {
  int64_t count = 0, of = 0;  // of so many lines
  std::string first;          // "FILE: line N: why"; empty: none
};

// "2 of the 9 lines of FILE cannot be read and are left out; the first: FILE: line 3: why".
std::string describe(const DamagedLines& damaged, const fs::path& path);

// The same as read_metrics, of the lines that can be read. Throws IoError.
Metrics read_undamaged_metrics(const fs::path& path, DamagedLines& damaged);

// Where MetricsWriter::truncate_after(step) would cut the file: its size, where nothing is to be cut. Throws likewise.
uint64_t bytes_until(const fs::path& path, int64_t step);

// Throws CorruptionError("FILE: byte N: why") where a line before `end` is damaged, as fast as a file is read and in a
// few MiB of memory. Lines of which each step may have one are not parsed: of these, what is found is bytes that were
// lost or joined to others, and a step that comes too early, but not each byte that was changed.
void check_metrics(const fs::path& path, uint64_t end = UINT64_MAX);

// What read_metrics() has as `run`, of a file of any length in a few MiB of memory. Throws IoError, and CorruptionError
// of such an event.
std::optional<RunEvent> last_run_event(const fs::path& path);

// Makes the file one of those lines, and of steps up to `step` as MetricsWriter::truncate_after has it. What it was is
// kept as FILE.damaged. Throws IoError.
DamagedLines repair_metrics(const fs::path& path, int64_t step);

// What a long metrics.jsonl says, without parsing all of it: where a run stands, from the end of the file, and its
// losses, which are taken from their lines as format_event() writes them. A file of 1e6 steps takes milliseconds for
// the one and a second or two for the other.

// The last event of each kind. Of evaluations, those on the validation split. `run` is the file's first, should the
// last one stand further from the end than kTail.
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

// Finite losses over steps, nats per token: each recorded step's, and each evaluation's on the validation split.
struct LossCurves {
  Curve training, validation;
  std::string damage;  // of the first line that cannot be read, as of MetricsStanding
};

// Throws IoError.
LossCurves read_losses(const fs::path& path);

}  // namespace witan
