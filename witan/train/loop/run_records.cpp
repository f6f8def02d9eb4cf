#include "witan/train/loop/run_records.h"

#include <fmt/format.h>

#include "witan/base/error.h"
#include "witan/base/files/log.h"
#include "witan/base/process.h"
#include "witan/report/events/metrics.h"
#include "witan/tensor/cuda.h"
#include "witan/train/record/memory.h"
#include "witan/train/trace/step_tracer.h"

namespace witan {
namespace {

// Truncates the events to the checkpoint. Damage neither ends the run nor loses the intact lines. Returns a warning
// about damage; empty if there is none.
std::string truncate_or_repair(const fs::path& events, int64_t step) {
  if (!fs::exists(events)) return "";
  try {
    check_metrics(events, bytes_until(events, step));  // before the file is changed, since a damaged one is kept
    MetricsWriter(events).truncate_after(step);
    return "";
  } catch (const CorruptionError&) {
    const DamagedLines damaged = repair_metrics(events, step);
    return cat(describe(damaged, events), "; the file as it was is now ", events.filename().string(), ".damaged");
  }
}

// Without cuBLASLt or cuDNN a run gives the same results, several times slower. Several GPUs without NCCL have already
// failed.
void warn_of_missing_libraries(Recorder& recorder) {
  for (const cuda::LibraryState& library : cuda::libraries())
    if (!library.missing.empty() && library.name != "NCCL")
      recorder.warn(cat(library.name, " is for ", library.purpose, ", so that this run is slow: ", library.missing));
}

}  // namespace

RunRecords::RunRecords(const ResolvedConfig& config, const RunPlan& plan, const RunData& data, const RunStart& start,
                       const RunEvent& event, Progress& progress)
    : start_(start), event_(event) {
  const RunFolder& folder = start.folder;
  if (start.aids.trace) remove_traces(folder);
  remove_snapshots(folder);
  recorder_.emplace(config, plan, folder, progress);
  recorder_->reads(data.train);
  for (const std::string& warning : start.early_warnings) recorder_->log_warning(warning);
  for (const std::string& warning : start.warnings) recorder_->warn(warning);
  for (const std::string& warning : data.warnings) recorder_->log_warning(warning);
  for (const std::string& note : data.notes) recorder_->note(note);
  if (const auto slow = slow_vocabulary(*config)) recorder_->warn(*slow);
  for (const std::string& slow : plan.slow_paths) recorder_->warn(slow);
  if (plan.on_gpu) warn_of_missing_libraries(*recorder_);

  if (config->train.sample_tokens > 0 && !config->writes_sample())
    progress.note("sample       none: no rank holds the whole model; generate text with `witan generate`");
  const auto held_out = held_out_batches(data, evaluation_samples(data, config->train), config->train.micro_batch_size);
  evaluated_bytes_ = target_bytes(held_out, *data.tokenizer);
  for (const ValidationSet& set : data.sets)
    set_bytes_.push_back(
        target_bytes(evaluation_batches(*set.samples, data.batch, evaluation_samples(set, config->train),
                                        config->train.micro_batch_size),
                     *data.tokenizer));
  if (!held_out.empty() && !config->objective.is_preference())
    baseline_bits_per_byte_ = bigram_bits_per_byte(data, held_out);
  if (start.from)
    progress.note(fmt::format("resume       from {}, step {} of {}", start.from->folder.string(), start.step(),
                              config->train.train_iters));
}

void RunRecords::begin() {
  const RunFolder& folder = start_.folder;
  if (!start_.from) {
    fs::remove(folder.metrics());  // left by a run that ended before its first checkpoint
    fs::remove(folder.samples());
    fs::remove(folder.rewinds());  // left by a run whose checkpoints were removed
  } else {
    for (const fs::path& events : {folder.metrics(), folder.samples()})
      if (const std::string damage = truncate_or_repair(events, start_.step()); !damage.empty())
        recorder_->warn(damage);
  }
  recorder_->begin(event_, baseline_bits_per_byte_, start_.step());
}

bool complete_records(const RunFolder& folder, int64_t step, RunEnd why) {
  if (!fs::exists(folder.metrics())) return false;
  const MetricsStanding standing = read_standing(folder.metrics());
  if (!standing.damage.empty() || (standing.end && !standing.end->failed())) return false;
  MetricsWriter metrics(folder.metrics());
  try {
    if (standing.end) metrics.truncate_after(step);
  } catch (const CorruptionError&) {
    return false;
  }
  metrics.append(EndEvent{std::string(reason_of(why))});
  Log(folder.log().string())
      .info(cat("end: ", reason_of(why), " (recorded by a later call: the process ended after its last save)"));
  return true;
}

void RunRecords::failed(const std::string& error) noexcept {
  try {
    recorder_->failed(error);
  } catch (...) {  // perhaps the error is a full disk
  }
}

void RunRecords::end(RunResult& result) {
  result.baseline_bits_per_byte = baseline_bits_per_byte_;
  result.bits_per_byte = recorder_->bits_per_byte();
  result.evaluated_at = recorder_->evaluated_at();
  result.best_gflops = recorder_->best_gflops();
  if (const auto resident = read_resident()) result.peak_resident = resident->peak;
  recorder_->memory(result.memory);
  recorder_->end(result.end, result.peak_resident);
}

}  // namespace witan
