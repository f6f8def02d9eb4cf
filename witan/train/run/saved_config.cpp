#include "witan/train/run/saved_config.h"

#include "witan/checkpoint/store.h"

namespace witan {

std::optional<RunConfig> saved_config(const fs::path& run_folder) {
  const fs::path path = run_folder / "config.toml";
  RunConfig config;
  std::error_code none;
  if (fs::file_size(path, none) > 0 && !none) {
    read_toml(config.fields(), path.string());
    return config;
  }
  std::vector<std::string> warnings;
  const auto checkpoint = latest_checkpoint(run_folder / "checkpoints", warnings);
  if (!checkpoint) return std::nullopt;
  parse_toml(config.fields(), read_extra_file(*checkpoint, "config.toml"),
             (checkpoint->folder / "config.toml").string());
  return config;
}

std::string config_to_save(RunConfig config, bool with_help) {
  config.load = {};
  return write_toml(config.fields(), with_help);
}

}  // namespace witan
