// Megatron-LM's command lines: `witan plan` and `witan train` take the flags of pretrain_gpt.py and
// pretrain_mamba.py (docs/megatron.md).
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "witan/cli/args/response_file.h"
#include "witan/cli/compat/megatron_rules.h"
#include "witan/train/config/config.h"

namespace witan::cli {

// A parsed Megatron-LM command line.
struct MegatronLine {
  std::vector<MegatronSettings::Setting> settings;  // keys, with their values and origins
  std::vector<std::pair<std::string, std::string>>
      harmless;                       // accepted without effect, and the reason if it is not obvious
  std::vector<std::string> rest;      // arguments that only Witan has: --config FILE, --fresh ...
  std::string why;                    // what identified it: "@dense.args", "--bf16"
  std::string instead;                // "did you mean --dtype bfloat16?", if nothing else identified it
  std::string name;                   // of the run, unless --run is given
  bool defaults = true;               // Megatron-LM's defaults apply; --no-megatron: Witan's
  std::optional<StepRange> profiled;  // of --profile: steps to trace, as far as a call comes to them
};

// The arguments after `witan plan` or `witan train`, with their response files read. Null if they are ordinary Witan
// arguments: without @FILE, --megatron, and flags that only Megatron-LM has. Throws UsageError for unexpected
// arguments, missing values and unreadable files; ConfigError, naming the place, for refused flags and invalid values.
std::shared_ptr<const MegatronLine> read_megatron_line(const std::vector<std::string>& words);

// The equivalent arguments for Witan's own parser: each key once, after `rest`.
std::vector<std::string> witan_arguments(const MegatronLine& line);

// Sets Megatron-LM's defaults for keys that are not in `given`. `config` already holds the given values, since some
// defaults depend on them (ffn_hidden_size on hidden_size ...). Returns "key = value" for those that differ from
// Witan's.
std::vector<std::string> set_megatron_defaults(RunConfig& config, const std::set<std::string>& given);

// Throws ConfigError naming the keys that a Megatron-LM command line must set and neither it nor a file sets.
void require_megatron_sizes(const std::set<std::string>& given, const MegatronLine& line);

// Keys with fixed defaults of Megatron-LM.
using Defaults = std::vector<std::pair<std::string, std::string>>;
const Defaults& megatron_defaults();

// The section of docs/megatron.md on defaults and flags, in Markdown: the output of `witan help megatron`.
std::string megatron_reference();

}  // namespace witan::cli
