// The records that the process of rank 0 writes about a run, from before its first step until after its last.
#pragma once

#include <optional>
#include <vector>

#include "witan/report/events/events.h"
#include "witan/report/progress/progress.h"
#include "witan/train/data/run_data.h"
#include "witan/train/loop/trainer.h"
#include "witan/train/record/recorder.h"
#include "witan/train/state/run_start.h"

namespace witan {

class RunRecords {
 public:
  // Opens train.log, and reports the warnings of the start. Measures the bigram baseline, with which evaluations are
  // compared. `start` must outlive this.
  RunRecords(const ResolvedConfig& config, const RunPlan& plan, const RunData& data, const RunStart& start,
             const RunEvent& event, Progress& progress);

  // Opens the other files. Those of a resumed run are truncated to its checkpoint. Called when the run is ready for its
  // next step, so that a start that fails leaves no trace in them.
  void begin();

  Recorder& recorder() { return *recorder_; }
  double evaluated_bytes() const { return evaluated_bytes_; }  // of the text of an evaluation's targets

  // The text bytes of an evaluation for each set of valid_data.
  const std::vector<double>& set_bytes() const { return set_bytes_; }

  // Writes the error that ends the run to train.log and, after begin(), to metrics.jsonl, if that is possible.
  void failed(const std::string& error) noexcept;

  // Closes the files with result.memory and result.end, and fills in the recorded fields of the result.
  void end(RunResult& result);

 private:
  const RunStart& start_;
  const RunEvent event_;
  std::optional<Recorder> recorder_;
  double evaluated_bytes_ = 0;
  std::vector<double> set_bytes_;
  double baseline_bits_per_byte_ = 0;
};

// Records the end of a run that is complete with its checkpoint of `step`, in metrics.jsonl and train.log, if its
// process could not: it was killed after saving, or lost another rank. Returns whether the end was missing. A
// metrics.jsonl that cannot be read stays as it is. Throws IoError.
bool complete_records(const RunFolder& folder, int64_t step, RunEnd why);

}  // namespace witan
