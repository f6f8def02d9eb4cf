// --skew of benchmarks: loads of experts that differ by a given measure, and what they make of loads of ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "witan/cli/command.h"
#include "witan/moe/config.h"

namespace witan::cli {

// --skew, into `skew`; empty: none is asked for.
void add_skew(CLI::App& command, std::string& skew);

// Forces the choice of experts that `skew` names: "0.5", the share of tokens that choose the first K experts; "4x",
// loads of a Zipf law whose largest is 4 times the mean; "hot", where every token chooses expert 0. Throws UsageError
// for anything else, and where the model has no experts.
void apply_skew(MoeConfig& moe, const std::string& skew);

// Rows that the fullest rank computes over the mean, in the worst layer.
struct RankLoad {
  double at_home = 0;   // where every expert is computed on its own rank
  double balanced = 0;  // with the replicas that these loads give
};
// counts [layers][E]: assignments of all `ranks` expert-parallel ranks, each of which is taken to have an equal share.
RankLoad rank_load(const std::vector<std::vector<int64_t>>& counts, int64_t ranks, int64_t slots);

}  // namespace witan::cli
