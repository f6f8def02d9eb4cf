// The configuration that results from a command line with Megatron-LM's flags.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/cli_support.h"
#include "support/message_of.h"
#include "witan/cli/args/run_config.h"
#include "witan/cli/compat/megatron.h"

namespace witan::test {

inline const std::filesystem::path kLists = std::filesystem::path(WITAN_SOURCE_DIR) / "recipes/megatron";

struct MegatronRead {
  RunConfig config;
  std::string said;
};

// Settings as `witan plan` reads them in a folder without runs.
inline MegatronRead read_words(std::vector<std::string> words) {
  const TempFolder nowhere;
  words.insert(words.end(), {"--runs-folder", nowhere.path().string()});
  Capture err;
  cli::Context context;
  context.err = err.file();
  context.megatron = cli::read_megatron_line(words);
  if (context.megatron) words = cli::witan_arguments(*context.megatron);
  MegatronRead read;
  CLI::App app("test", "test");
  cli::add_megatron_flag(app);
  const cli::ConfigArgs args(app, read.config.fields());
  app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  read.config = cli::read_given_config(context, read.config, args).config;
  read.config.train.runs_folder = RunConfig().train.runs_folder;
  read.said = err.text();
  return read;
}

inline std::string toml_of(RunConfig config) {
  return write_toml(config.fields());
}

// The sizes that a command line of Megatron-LM must have.
inline std::vector<std::string> small(const std::vector<std::string>& more) {
  std::vector<std::string> words = {
      "--num-layers",  "2", "--hidden-size", "64",   "--seq-length",       "32", "--num-attention-heads",     "4",
      "--train-iters", "8", "--lr",          "1e-3", "--micro-batch-size", "2",  "--max-position-embeddings", "32"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

inline RunConfig read_config(const std::vector<std::string>& more) {
  return read_words(small(more)).config;
}

inline std::string config_refused(const std::vector<std::string>& more) {
  return message_of<ConfigError>([&] { read_words(small(more)); });
}

inline std::string list(const std::string& name) {
  return "@" + (kLists / (name + ".args")).string();
}

}  // namespace witan::test
