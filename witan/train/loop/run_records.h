// The files that the process of rank 0 writes about a run, from before its first step to after its last.
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
  // Opens train.log, and says what the run begins with. Measures the bigram baseline, which evaluations are compared
  // with. `start` must outlive this.
  RunRecords(const ResolvedConfig& config, const RunPlan& plan, const RunData& data, const RunStart& start,
             const RunEvent& event, Progress& progress);

  // Opens the other files, those of a resumed run as they were at its checkpoint; what they say of later steps is
  // forgotten. Called when the run is ready for its next step: of a start that fails before, they say nothing.
  void begin();

  Recorder& recorder() { return *recorder_; }
  double evaluated_bytes() const { return evaluated_bytes_; }  // of text that the targets of an evaluation stand for

  // Likewise of each set of valid_data.
  const std::vector<double>& set_bytes() const { return set_bytes_; }

  // What the error that ends the run says stands in train.log too, and behind begin() in metrics.jsonl, where they can
  // be written.
  void failed(const std::string& error) noexcept;

  // Closes the files with result.memory and result.end, and completes the result by what was recorded.
  void end(RunResult& result);

 private:
  const RunStart& start_;
  const RunEvent event_;
  std::optional<Recorder> recorder_;
  double evaluated_bytes_ = 0;
  std::vector<double> set_bytes_;
  double baseline_bits_per_byte_ = 0;
};

// Of a run that has nothing left to do after its checkpoint of `step`, and whose process had no time to record that: it
// was killed after it had saved, or lost another rank. metrics.jsonl and train.log say so now. Returns whether they had
// not. Figures that cannot be read stay as they are. Throws IoError.
bool complete_records(const RunFolder& folder, int64_t step, RunEnd why);

}  // namespace witan
