#include "witan/train/loop/anomaly_response.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "witan/base/config/fields.h"
#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/checkpoint/step_folders.h"
#include "witan/comm/texts.h"
#include "witan/train/config/saved_config.h"
#include "witan/train/record/recorder.h"
#include "witan/train/state/rewinds.h"

namespace witan {

AnomalyResponse::AnomalyResponse(const ResolvedConfig& config, const RunFolder& folder, const std::string& tokenizer,
                                 BackgroundSave& saving, Recorder* recorder)
    : config_(config), folder_(folder), tokenizer_(tokenizer), saving_(saving), recorder_(recorder) {}

std::optional<AnomalyResponse::Return> AnomalyResponse::meet(const AnomalousStep& anomaly, const TrainState& state) {
  const TrainConfig& train = config_->train;
  AnomalyEvent event{.step = anomaly.step, .what = anomaly.result.spike ? "spike" : "nan", .text = {}};
  if (state.skipped_in_a_row <= 1) bad_values_.clear();
  if (says(keeps_anomaly(folder_.anomalies(), anomaly.step, train.keep_anomalies)))
    keep(anomaly, state, event);
  else
    event.text = describe_unkept(anomaly);
  const AfterAnomaly after = after_anomaly(train, anomaly.result);
  std::optional<Checkpoint> back =
      after == AfterAnomaly::rewind ? checkpoint_to_return_to(anomaly.step - state.skipped_in_a_row + 1) : std::nullopt;
  const bool ends = after == AfterAnomaly::stop || (back && std::ssize(state.rewinds) >= train.max_rewinds);
  event.action = ends ? "stop" : back ? "rewind" : "skip";
  if (after == AfterAnomaly::rewind && !back)
    event.text += cat("; there is no checkpoint", state.skipped_in_a_row > 1 ? " from before these steps" : "",
                      " to go back to yet");
  const std::string said = broadcast_text(host(), saving_.stream(), event.text, 0);
  if (recorder_ != nullptr && (ends || !back)) recorder_->anomaly(event);
  if (ends) end(anomaly, after, said);
  if (!back) return std::nullopt;
  return Return{std::move(*back), std::move(event)};
}

void AnomalyResponse::require_updates(const TrainState& state, bool spike, std::optional<int64_t> newest) const {
  if (state.skipped_in_a_row < config_->train.most_skipped) return;
  const auto kept = step_folders(folder_.anomalies());
  const std::string look =
      kept.empty() ? "" : cat("; `witan replay ", kept.back().second.string(), "` computes such a step again");
  throw DivergedError(cat("step ", state.step, ": ", state.skipped_in_a_row,
                          spike ? " steps in a row were skipped, the last one as a spike. "
                                : " steps in a row had gradients that were not finite. ",
                          way_out(state, newest), look));
}

// Non-finite weights give non-finite gradients, whatever the data and the learning rate.
std::string AnomalyResponse::way_out(const TrainState& state, std::optional<int64_t> newest) const {
  if (bad_values_.empty()) return cat(where_to_resume(state, newest), " with a smaller --lr, or check the data");
  const TrainConfig& train = config_->train;
  const bool upcycles = train.init_from.empty();
  const std::string& source = upcycles ? train.upcycle : train.init_from;
  const std::string of_weights = cat("The weights themselves are not finite: ", bad_values_);
  if (state.updates > 0 || source.empty()) return cat(of_weights, ". ", where_to_resume(state, newest));
  return cat(of_weights, ", as they came from ", upcycles ? "upcycle" : "init_from", " = ", source,
             ": start from weights that are finite");
}

std::string AnomalyResponse::where_to_resume(const TrainState& state, std::optional<int64_t> newest) const {
  if (!newest) return "Nothing was saved yet; start again";
  const std::string name = step_folder_name(*newest);
  if (*newest > state.step - state.skipped_in_a_row)
    return cat(name, " was saved among them: remove it from ", folder_.checkpoints().string(),
               " to resume from the one before,");
  return cat(name, ", from before them, is intact; resume from it");
}

// Collective.
void AnomalyResponse::end(const AnomalousStep& anomaly, AfterAnomaly after, const std::string& said) {
  const bool spike = anomaly.result.spike;
  const char* key = spike ? "on_spike" : "on_nan";
  const std::string why = after == AfterAnomaly::stop
                              ? cat(key, " = stop ended the run before its update")
                              : cat("The run went back ", config_->train.max_rewinds, " times already (max_rewinds)");
  const std::string way = spike ? "a larger --skip-step-sigma" : "a smaller --lr";
  const std::string go_on = says(!step_folders(folder_.checkpoints()).empty())
                                ? cat("the last checkpoint is intact: the same command with ", flag_name(key),
                                      " skip or ", way, " resumes from it")
                                : cat("nothing was saved yet: start again with ", flag_name(key), " skip or ", way);
  throw DivergedError(
      cat("step ", anomaly.step, spike ? " was a spike" : " was not finite", ": ", said, ". ", why, "; ", go_on));
}

// Rank 0's answer, on all ranks.
bool AnomalyResponse::says(bool own) {
  return gather_numbers(host(), saving_.stream(), own ? 1 : 0).front() != 0;
}

std::string AnomalyResponse::describe_unkept(const AnomalousStep& anomaly) {
  std::string text = fmt::format("loss {:.4g}, gradient norm {:.4g}", unsigned_nan(anomaly.result.loss),
                                 unsigned_nan(anomaly.result.gradient_norm));
  if (!std::exchange(told_of_unkept_, true))
    text += fmt::format(
        "; not investigated, as later ones are not: {} already holds the steps that keep_anomalies = {} allows",
        folder_.anomalies().string(), config_->train.keep_anomalies);
  return text;
}

// A failure to write does not end the run.
void AnomalyResponse::keep(const AnomalousStep& anomaly, const TrainState& state, AnomalyEvent& event) {
  const AnomalyFindings findings = investigate(host(), saving_.stream(), anomaly);
  event.text = findings.text;
  if (const std::string values = broadcast_text(host(), saving_.stream(), findings.values, 0); !values.empty())
    bad_values_ = values;
  Json scalars = {{kAnomaly,
                   {{"what", event.what},
                    {"text", findings.text},
                    {"updates", anomaly.updates},
                    {"consumed_samples", state.consumed_samples - anomaly.result.samples},
                    {"loss", cat(unsigned_nan(anomaly.result.loss))},
                    {"gradient_norm", cat(unsigned_nan(anomaly.result.gradient_norm))},
                    {"loss_scale", anomaly.result.scalars.get(kLossScale).value_or(0)},
                    {"ranks", findings.ranks}}}};
  std::vector<std::pair<std::string, std::string>> files;
  if (host().rank() == 0) files = {{"config.toml", config_to_save(config_)}, {"tokenizer.json", tokenizer_}};
  try {
    const DeadlineScope patience(
        host(), saving_.deadline(cat("save step ", anomaly.step, " to ", folder_.anomalies().string())));
    const fs::path kept =
        write_anomaly(host(), saving_.stream(), folder_.anomalies(), anomaly, std::move(scalars), std::move(files));
    event.folder = cat("anomalies/", kept.filename().string());
  } catch (const DiskFullError& error) {
    event.text += cat("; its folder was not written: ", error.what());
  } catch (const CheckpointError& error) {
    event.text += cat("; its folder was not written: ", error.what());
  }
}

std::optional<Checkpoint> AnomalyResponse::checkpoint_to_return_to(int64_t step) {
  const fs::path folder = folder_.checkpoints();
  int64_t to = host().rank() == 0 ? step_to_return_to(folder, step, config_->train.save_interval) : -1;
  to = gather_numbers(host(), saving_.stream(), to).front();
  if (to < 0) return std::nullopt;
  return open_checkpoint(folder / step_folder_name(to));
}

}  // namespace witan
