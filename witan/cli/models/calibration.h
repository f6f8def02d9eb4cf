// The inputs of a run's matrices on a text, by which `witan export --calibrate` quantises them.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "witan/cli/models/exported_run.h"
#include "witan/cli/text_batches.h"
#include "witan/convert/hf/hf_export.h"
#include "witan/convert/input_moments.h"
#include "witan/report/progress/progress.h"
#include "witan/train/weights/load_run.h"

namespace witan::cli {

class Calibration {
 public:
  // Reads the text of --calibrate and loads the model, on the CPU. Throws as `witan eval --data` does.
  Calibration(const ExportArgs& args, std::FILE* err);

  int64_t tokens() const;
  // Valid as long as this object. Moments are kept for as many layers as fit in some memory, and the text is read again
  // for the layers after them.
  FeedbackOf feedback();

 private:
  void read_text(size_t first_layer);

  Progress progress_;
  TextBatches text_;
  ThreadPool pool_;
  std::unique_ptr<TrainedModel> model_;
  std::vector<std::vector<const Parameter*>> layers_;  // the projections of each layer
  std::optional<InputMoments> moments_;                // of some layers
  // The feedback that was computed last, and the moments that it was computed from.
  const float* computed_from_ = nullptr;
  std::shared_ptr<const ErrorFeedback> computed_;
};

}  // namespace witan::cli
