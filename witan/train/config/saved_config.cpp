#include "witan/train/config/saved_config.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <string_view>
#include <variant>

#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/checkpoint/store.h"

namespace witan {
namespace {

// Replaces the schedules of learning rate and weight decay by those of `saved`, a checkpoint's configuration.
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
  now.groups = saved.optimizer.groups;  // groups have schedules of their own
}

// The files and folders of a list separated by commas, as canonical paths.
std::vector<fs::path> files_of(const std::string& list) {
  std::vector<fs::path> files;
  std::istringstream pieces(list);
  for (std::string piece; std::getline(pieces, piece, ',');) {
    std::error_code unknown;
    const fs::path whole = fs::weakly_canonical(fs::absolute(piece, unknown), unknown);
    files.push_back(unknown ? fs::path(piece) : whole);
  }
  return files;
}

bool says_the_same(const Field& before, const Field& now) {
  constexpr std::array<std::string_view, 7> files = {
      "data", "data_path", "train_data_path", "valid_data_path", "test_data_path", "tokenizer", "chat_template"};
  if (before.text() == now.text()) return true;
  return std::ranges::find(files, now.name) != files.end() &&
         files_of(*std::get<std::string*>(before.value)) == files_of(*std::get<std::string*>(now.value));
}

}  // namespace

std::optional<RunConfig> saved_config(const fs::path& run_folder) {
  const fs::path path = run_folder / "config.toml";
  RunConfig config;
  std::error_code none;
  std::vector<std::string> warnings;
  if (fs::file_size(path, none) > 0 && !none) {
    try {
      read_toml(config.fields(), path.string());
    } catch (const ConfigError& error) {
      const auto copy = latest_checkpoint(run_folder / "checkpoints", warnings);
      if (!copy) throw;
      throw ConfigError(cat(error.what(), "; if the file is damaged, an intact copy is ",
                            (copy->folder / "config.toml").string(), ": copy it over ", path.string()));
    }
    return config;
  }
  const auto checkpoint = latest_checkpoint(run_folder / "checkpoints", warnings);
  return checkpoint ? std::optional(config_of(*checkpoint)) : std::nullopt;
}

RunConfig config_of(const Checkpoint& checkpoint) {
  RunConfig config;
  parse_toml(config.fields(), read_extra_file(checkpoint, "config.toml"), (checkpoint.folder / "config.toml").string());
  return config;
}

std::string config_to_save(RunConfig config, bool with_help) {
  config.load = {};
  return write_toml(config.fields(), with_help);
}

std::optional<RunConfig> scheduling_checkpoint(const RunConfig& config) {
  if (!config.load.use_checkpoint_opt_param_scheduler) return std::nullopt;
  std::vector<std::string> warnings;  // train() reports them
  const auto checkpoint =
      latest_checkpoint(fs::path(config.train.runs_folder) / config.train.run / "checkpoints", warnings);
  return checkpoint ? std::optional(config_of(*checkpoint)) : std::nullopt;
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

bool is_identity(const Field& field) {
  constexpr std::array<std::string_view, 4> sections = {"model", "moe", "data", "tokenizer"};
  constexpr std::array<std::string_view, 6> keys = {
      "micro_batch_size", "global_batch_size", "rampup_batch_size", "decrease_batch_size_if_needed", "seed",
      "reference"};
  constexpr std::array<std::string_view, 16> free = {
      "recompute_granularity",     "recompute_modules", "moe_grouped_gemm",
      "moe_expert_backend",        "moe_pool_factor",   "moe_exchange_factor",
      "moe_token_dispatcher_type", "hidden_dropout",    "neftune_noise_alpha",
      "attention_dropout",         "lora_dropout",      "valid_data",
      "moe_shared_expert_overlap", "data_cache_path",   "moe_replicated_experts",
      "fp8_keep_weights"};
  const auto contains = [](const auto& list, std::string_view word) {
    return std::find(list.begin(), list.end(), word) != list.end();
  };
  return contains(keys, field.name) || (contains(sections, field.section) && !contains(free, field.name));
}

std::vector<std::string> changed_identity(RunConfig before, RunConfig now) {
  std::vector<std::string> changes;
  const Fields was = before.fields(), is = now.fields();
  for (size_t i = 0; i < was.size(); ++i)
    if (is_identity(is[i]) && !says_the_same(was[i], is[i]))
      changes.push_back(cat(is[i].name, " = ", is[i].text(), " (was ", was[i].text(), ")"));
  return changes;
}

}  // namespace witan
