#include "witan/cli/models/calibration.h"

#include <algorithm>
#include <set>

#include "witan/base/error.h"
#include "witan/cli/args/shared_args.h"
#include "witan/train/step/evaluate.h"

namespace witan::cli {
namespace {

constexpr int64_t kMomentsTogether = int64_t{4} << 30;  // bytes

// The run on this text, with products that can be observed.
TrainedRun observable_run(const ExportArgs& args, std::FILE* err) {
  TrainedRun run = open_selected_run(err, {.run = args.run, .runs_folder = args.runs_folder});
  run.config = run.config.with([](RunConfig& config) {
    config.model.fp8_format = "none";
    config.model.moe.moe_expert_backend = "grouped";
  });
  return run;
}

TextBatches calibration_text(const ExportArgs& args, const TrainedRun& run, Progress& progress) {
  const CorpusOptions options;
  const Sources sources = find_sources(paths_of(args.calibrate));
  if (!sources.skipped.empty()) progress.note("warning: skipped: " + describe_skipped(sources.skipped));
  check_encoding(sources.files, options);
  return batch_text(sources.files, options, *run.tokenizer, run.config->data.seq_length,
                    batch_options(run.config->data, *run.tokenizer));
}

std::vector<std::vector<const Parameter*>> projections_by_layer(Transformer& model) {
  std::vector<std::vector<const Parameter*>> layers;
  for (const Parameter* parameter : model.parameters()) {
    const ParameterSpec& spec = parameter->spec();
    if (spec.kind != ParameterKind::matrices && spec.kind != ParameterKind::experts) continue;
    if (layers.empty() || layers.back().front()->spec().unit != spec.unit) layers.emplace_back();
    layers.back().push_back(parameter);
  }
  return layers;
}

}  // namespace

Calibration::Calibration(const ExportArgs& args, std::FILE* err)
    : progress_(err, progress_options(err)), pool_(usable_cores()) {
  const TrainedRun run = observable_run(args, err);
  text_ = calibration_text(args, run, progress_);
  model_ = std::make_unique<TrainedModel>(run, usable_cores(), [&](Stream& stream, Transformer& meta) {
    std::set<int64_t> lengths;
    for (const Batch& batch : text_.batches)
      if (lengths.insert(batch.sequence_length).second) evaluate(stream, meta, batch, /*padded=*/false);
  });
  layers_ = projections_by_layer(model_->model());
}

int64_t Calibration::tokens() const {
  int64_t tokens = 0;
  for (const Batch& batch : text_.batches) tokens += std::ssize(batch.tokens);
  return tokens;
}

void Calibration::read_text(size_t first_layer) {
  std::vector<const Parameter*> parameters;
  int64_t bytes = 0;
  for (size_t layer = first_layer; layer < layers_.size(); ++layer) {
    for (const Parameter* parameter : layers_[layer]) bytes += InputMoments::bytes_of(*parameter);
    if (bytes > kMomentsTogether && !parameters.empty()) break;
    parameters.insert(parameters.end(), layers_[layer].begin(), layers_[layer].end());
  }
  computed_ = nullptr, computed_from_ = nullptr;
  moments_.emplace(parameters, pool_);
  model_->stream().observe(&*moments_);
  TaskProgress task(progress_, "calibrating", static_cast<double>(text_.batches.size()), "batches");
  double done = 0;
  for (const Batch& batch : text_.batches) {
    evaluate(model_->stream(), model_->model(), batch, /*padded=*/false);
    task.update(++done);
  }
  model_->stream().observe(nullptr);
}

FeedbackOf Calibration::feedback() {
  return [this](const std::string& name, int64_t matrix) -> std::shared_ptr<const ErrorFeedback> {
    const auto layer = std::ranges::find_if(layers_, [&](const auto& of_layer) {
      return std::ranges::find(of_layer, name, &Parameter::name) != of_layer.end();
    });
    if (layer == layers_.end()) return nullptr;
    if (!moments_ || !moments_->collects(name)) read_text(static_cast<size_t>(layer - layers_.begin()));
    const std::span<const float> moments = moments_->of(name, matrix);
    if (moments.empty()) return nullptr;
    if (moments.data() != computed_from_) {
      computed_ = std::make_shared<const ErrorFeedback>(moments, pool_);
      computed_from_ = moments.data();
    }
    return computed_;
  };
}

}  // namespace witan::cli
