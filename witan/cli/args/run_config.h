// The configuration that one call of a command gives, and the source of every value.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/cli/args/config_args.h"
#include "witan/cli/command.h"
#include "witan/train/config/config.h"

namespace witan::cli {

// Help text about response files and Megatron-LM's flags.
inline constexpr const char* kListsHelp =
    "@FILE reads flags from a file, and Megatron-LM's flags are understood: `witan help megatron`.";

// Adds --megatron and --no-megatron to a command.
void add_megatron_flag(CLI::App& command);

// The source of a value. Later sources override earlier ones. Megatron-LM's defaults, and the model that a new run
// starts from, do not apply to a run that is on disk.
enum class ValueSource : uint8_t { witan_default, megatron_default, first_weights, saved_run, preset, file, flag };

// A configuration as it was given, before resolve(): automatic values are 0 or auto.
struct GivenConfig {
  RunConfig config;
  std::map<std::string, ValueSource> sources;  // by key; keys that are missing have Witan's defaults
  fs::path run;                                // the run's folder
  std::optional<RunConfig> saved;              // the configuration of the run in that folder
  std::vector<std::string> changes;            // changed keys that make it another run (changed_identity)
  std::string preset;                          // value of --preset; empty: none
  std::string file;                            // value of --config; empty: none
  std::string mesh;                            // value of --mesh, as typed; empty: none
  // The place of each key that a file, a preset, a flag or the run sets: "mine.toml:3", "preset gpt2-124m:7", "--lr",
  // "--mesh", "runs/base/config.toml:12".
  std::map<std::string, std::string> places;

  // The origin of the key's value, for messages: its place, or "default".
  std::string place(const std::string& key) const;
  ValueSource source(const std::string& key) const;
  // Whether this call sets the key: by --preset, --config, a flag, or the mesh of one of them.
  bool said(const std::string& key) const { return source(key) >= ValueSource::preset; }
};

// How a call treats the run on disk if it asks for a different one, as which `witan train` refuses to resume it.
enum class OtherRun : uint8_t {
  keep,     // the run's configuration applies to keys that the call does not set
  leave,    // the call stands alone, as with a new --run NAME; a message on context.err says so
  replace,  // as keep; but a call that names other first weights (init_from, upcycle) takes the model from them
};

// Reads the given configuration, in the order of ValueSource. The flags, `args`, are bound to `config`. Prints to
// context.err how Megatron-LM's defaults and flags were understood. Throws ConfigError, CheckpointError.
GivenConfig read_given_config(const Context& context, RunConfig& config, const ConfigArgs& args,
                              OtherRun other = OtherRun::keep);

// The flags of commands that plan, train or measure a run: --preset, --config, --megatron, and a flag for each key.
class RunConfigArgs {
 public:
  void add(CLI::App& command);
  // As read_given_config(), once the command line is parsed.
  GivenConfig read(const Context& context, OtherRun other = OtherRun::keep) {
    return read_given_config(context, flags_, *args_, other);
  }

 private:
  RunConfig flags_;  // which `args_` set
  std::optional<ConfigArgs> args_;
};

// Warnings about keys that this call sets but that have no effect, or not the intended one, in the resolved
// configuration: a sentence for each reason.
std::vector<std::string> config_warnings(const GivenConfig& given, const RunConfig& resolved);

// Runs `body`. If a ConfigError names values that come from the run on disk or a preset, and not from the call's file
// or flags, it is extended to say so and to name the flags that change them.
ExitCode naming_sources(const GivenConfig& given, const std::function<ExitCode()>& body);

// The origin of a configuration is a comment at the head of the run's config.toml, for people and `witan runs`; nothing
// depends on it. "# from preset gpt2-124m, mine.toml", with a line feed; empty if neither is named.
std::string origin_line(const std::string& preset, const std::string& file);

// "# from Hugging Face folder base", for any source in words.
std::string origin_line(const std::string& source);

// "preset gpt2-124m, mine.toml", read from a config.toml; empty if it has no such comment or cannot be read.
std::string read_origin(const fs::path& config_toml);

// The whole comment with its line feed; empty in the same cases.
std::string origin_line_of(const fs::path& config_toml);

}  // namespace witan::cli
