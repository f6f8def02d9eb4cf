// What one call of `witan plan` or `witan train` says: its configuration as given, and who said what of it.
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
#include "witan/train/run/config.h"

namespace witan::cli {

// What the help of both commands says of lists and of Megatron-LM's flags.
inline constexpr const char* kListsHelp =
    "@FILE reads flags from a file, and Megatron-LM's flags are understood: `witan help megatron`.";

// Adds --megatron and --no-megatron to a command.
void add_megatron_flag(CLI::App& command);

// Where a value comes from. Later ones beat earlier ones; Megatron-LM's defaults, and the model that a new run starts
// from, do not apply to a run that is on disk.
enum class ValueSource : uint8_t { witan_default, megatron_default, first_weights, saved_run, preset, file, flag };

// A configuration as it was given: what is automatic is 0 or auto (train/run/resolve.h).
struct GivenConfig {
  RunConfig config;
  std::map<std::string, ValueSource> sources;  // of keys; those that are not here have Witan's defaults
  fs::path run;                                // the run's folder
  std::optional<RunConfig> saved;              // the configuration of the run that is there
  std::vector<std::string> changes;            // of what makes it the same run (changed_identity)
  std::string preset;                          // its name; empty: none was asked for
  std::string file;                            // of --config; likewise
  std::string mesh;                            // of --mesh, as it was typed; likewise
  // Of keys whose sources are files, presets, flags or the run: which exactly, "mine.toml:3", "preset gpt2-124m:7",
  // "--lr", "--mesh", "runs/base/config.toml:12".
  std::map<std::string, std::string> places;

  // Where the key's value comes from, for people: its place, or "default".
  std::string place(const std::string& key) const;
  ValueSource source(const std::string& key) const;
  // Whether this call says it, by --preset, --config, a flag, or the mesh of one of them.
  bool said(const std::string& key) const { return source(key) >= ValueSource::preset; }
};

// What to do with the run on disk where this call asks for another one, which `witan train` refuses to resume it as.
enum class OtherRun : uint8_t {
  keep,     // its configuration holds where the call says nothing
  leave,    // the call stands alone, as it would with a new --run NAME; this is said on context.err
  replace,  // as keep; but a call that names other weights to start from (init_from, upcycle) takes the model from
            // there
};

// Reads what is given, by the order of ValueSource. `config` is what the flags, `args`, are bound to. Says on
// context.err which of Megatron-LM's defaults and flags were taken how. Throws ConfigError, CheckpointError.
GivenConfig read_given_config(const Context& context, RunConfig& config, const ConfigArgs& args,
                              OtherRun other = OtherRun::keep);

// The flags that give a run's configuration, as commands take them that plan, train or measure a run: --preset,
// --config,
// --megatron and a flag for each key.
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

// A sentence for each reason why keys that this call's file or flags set have no effect in the configuration that it
// was resolved to, or not the one they are for.
std::vector<std::string> config_warnings(const GivenConfig& given, const RunConfig& resolved);

// Runs `body`. A ConfigError that names values which the run on disk or a preset has said, and neither the call's file
// nor its flags, says so too, and by which flags this call could say others.
ExitCode naming_sources(const GivenConfig& given, const std::function<ExitCode()>& body);

// "# from preset gpt2-124m, mine.toml", with a line feed; empty where neither is named.
std::string origin_line(const std::string& preset, const std::string& file);

// "# from Hugging Face folder base": of any source in words.
std::string origin_line(const std::string& source);

// "preset gpt2-124m, mine.toml" of a config.toml; empty where it says nothing, or cannot be read.
std::string read_origin(const fs::path& config_toml);

// The line itself, with its line feed; likewise.
std::string origin_line_of(const fs::path& config_toml);

}  // namespace witan::cli
