// --skew of benchmarks: loads of experts that differ by a given measure.
#pragma once

#include <string>

#include "witan/cli/command.h"
#include "witan/moe/config.h"

namespace witan::cli {

// --skew, into `skew`; empty: none is asked for.
void add_skew(CLI::App& command, std::string& skew);

// Forces the choice of experts that `skew` names: "0.5", the share of tokens that choose the first K experts; "4x",
// loads of a Zipf law whose largest is 4 times the mean; "hot", where every token chooses expert 0. Throws UsageError
// for anything else, and where the model has no experts.
void apply_skew(MoeConfig& moe, const std::string& skew);

}  // namespace witan::cli
