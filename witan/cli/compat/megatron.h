// Megatron-LM's command lines: `witan plan` and `witan train` take the flags of pretrain_gpt.py (docs/megatron.md).
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "witan/cli/compat/megatron_rules.h"
#include "witan/cli/response_file.h"
#include "witan/train/run/config.h"

namespace witan::cli {

// What a command line in Megatron-LM's words says.
struct MegatronLine {
  std::vector<MegatronSettings::Setting> settings;            // keys, with their values and where they were given
  std::vector<std::pair<std::string, std::string>> harmless;  // accepted without effect, and why where it is not plain
  std::vector<std::string> rest;                              // words that are Witan's own: --config FILE, --fresh ...
  std::string why;                                            // what made it one: "@dense.args", "--bf16"
  std::string name;                                           // of the run, unless it is given one
  bool defaults = true;                                       // Megatron-LM's apply; --no-megatron: Witan's
};

// The words after `witan plan` or `witan train`, with their lists read. Null if they are in Witan's own words: without
// @FILE, --megatron, and flags that only Megatron-LM has. Throws UsageError for words that stand alone, values that are
// missing and lists that cannot be read; ConfigError, naming the place, for flags that are refused and for values that
// their keys do not take.
std::shared_ptr<const MegatronLine> read_megatron_line(const std::vector<std::string>& words);

// The words in which Witan's own flags say the same: each key once, after `rest`.
std::vector<std::string> witan_words(const MegatronLine& line);

// Megatron-LM's defaults, for keys that are not in `given`. `config` already holds what was given: some follow from it
// (ffn_hidden_size from hidden_size ...). Returns "key = value" for those that differ from Witan's.
std::vector<std::string> set_megatron_defaults(RunConfig& config, const std::set<std::string>& given);

// Throws ConfigError naming what a command line of Megatron-LM must say and neither it nor a file does.
void require_megatron_sizes(const std::set<std::string>& given, const MegatronLine& line);

// Keys and the values that Megatron-LM gives them, whatever else is said.
using Defaults = std::vector<std::pair<std::string, std::string>>;
const Defaults& megatron_defaults();

// docs/megatron.md's account of the defaults and of all flags, in Markdown: `witan help megatron`.
std::string megatron_reference();

}  // namespace witan::cli
