#include "witan/train/config/load_options.h"

#include "witan/base/error.h"
#include "witan/checkpoint/store.h"

namespace witan {

namespace {

// The schedules of learning rate and weight decay become those that `saved`, a checkpoint's configuration, trained
// with.
void take_schedule(RunConfig& config, const RunConfig& saved) {
  OptimizerConfig& now = config.optimizer;
  now.lr = saved.optimizer.lr;
  now.min_lr = saved.optimizer.min_lr;
  now.lr_decay_style = saved.optimizer.lr_decay_style;
  now.lr_warmup_iters = saved.optimizer.lr_warmup_iters;
  now.lr_warmup_samples = saved.optimizer.lr_warmup_samples;
  now.lr_warmup_init = saved.optimizer.lr_warmup_init;
  now.lr_schedule_counter = saved.optimizer.lr_schedule_counter;
  now.lr_decay_iters = saved.optimizer.lr_decay_iters;
  now.lr_decay_samples = saved.optimizer.lr_decay_samples;
  now.lr_wsd_decay_style = saved.optimizer.lr_wsd_decay_style;
  now.lr_wsd_decay_iters = saved.optimizer.lr_wsd_decay_iters;
  now.lr_wsd_decay_samples = saved.optimizer.lr_wsd_decay_samples;
  now.weight_decay = saved.optimizer.weight_decay;
  now.weight_decay_incr_style = saved.optimizer.weight_decay_incr_style;
  now.start_weight_decay = saved.optimizer.start_weight_decay;
  now.groups = saved.optimizer.groups;  // which have schedules of their own
}

}  // namespace

std::optional<RunConfig> scheduling_checkpoint(const RunConfig& config) {
  if (!config.load.use_checkpoint_opt_param_scheduler) return std::nullopt;
  std::vector<std::string> warnings;  // train() gives them
  const auto checkpoint =
      latest_checkpoint(fs::path(config.train.runs_folder) / config.train.run / "checkpoints", warnings);
  if (!checkpoint) return std::nullopt;
  RunConfig saved;
  parse_toml(saved.fields(), read_extra_file(*checkpoint, "config.toml"),
             (checkpoint->folder / "config.toml").string());
  return saved;
}

RunConfig with_load_options(const RunConfig& given, const std::optional<RunConfig>& checkpoint,
                            std::vector<std::string>& notes) {
  if (given.load.no_load_rng)
    notes.push_back("no_load_rng has no effect: random numbers depend only on the seed and the step");
  if (!checkpoint) return given;
  RunConfig before = given, scheduled = given;
  take_schedule(scheduled, *checkpoint);
  const Fields was = before.fields(), is = scheduled.fields();
  for (size_t i = 0; i < was.size(); ++i)
    if (was[i].text() != is[i].text())
      notes.push_back(
          cat("not used     ", was[i].name, " = ", was[i].text(), " (the checkpoint's: ", is[i].text(), ")"));
  return scheduled;
}

}  // namespace witan
