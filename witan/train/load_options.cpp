#include "witan/train/load_options.h"

#include "witan/checkpoint/store.h"

namespace witan {

void take_schedule(RunConfig& config, const RunConfig& saved) {
  OptimizerConfig& now = config.optimizer;
  now.lr = saved.optimizer.lr;
  now.min_lr = saved.optimizer.min_lr;
  now.lr_decay_style = saved.optimizer.lr_decay_style;
  now.lr_warmup_iters = saved.optimizer.lr_warmup_iters;
  // "As long as the run" meant that run's length.
  now.lr_decay_iters = saved.optimizer.lr_decay_iters > 0 ? saved.optimizer.lr_decay_iters : saved.train.train_iters;
  now.weight_decay = saved.optimizer.weight_decay;
}

void apply_load_options(RunConfig& config, Progress& progress) {
  if (config.load.no_load_rng)
    progress.note("no_load_rng: nothing to leave out; random numbers here are a function of the seed and the step");
  if (!config.load.use_checkpoint_opt_param_scheduler) return;
  std::vector<std::string> warnings;  // train() gives them
  const auto checkpoint =
      latest_checkpoint(fs::path(config.train.runs_folder) / config.train.run / "checkpoints", warnings);
  if (!checkpoint) return;
  RunConfig saved;
  parse_toml(saved.fields(), read_extra_file(*checkpoint, "config.toml"),
             (checkpoint->folder / "config.toml").string());
  take_schedule(config, saved);
}

}  // namespace witan
