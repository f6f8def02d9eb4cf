#include "witan/train/config/saved_config.h"

namespace witan {

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

}  // namespace witan
