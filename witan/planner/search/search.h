// Which layouts of a model fit a number of GPUs, and how long a step of each will take.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "witan/planner/plan.h"
#include "witan/planner/search/layout_choice.h"
#include "witan/planner/speeds/cluster.h"
#include "witan/planner/time/step_time.h"
#include "witan/train/run/resolve.h"

namespace witan {

struct LayoutEstimate {
  double seconds = 0;       // of a step
  int64_t state_bytes = 0;  // of values, gradients and optimizer, on the average rank: a rank of any layout so divided
                            // needs no less
  int64_t bytes = 0;        // with activations
};

// Work and traffic follow Narayanan et al. 2021 (arXiv:2104.04473) and
// Korthikanti et al. 2022 (arXiv:2205.05198), as docs/cli.md describes; times are predict_step()'s.
LayoutEstimate estimate_layout(const ResolvedConfig& config, const Cluster& cluster, const Ceilings& ceilings);

struct SearchOptions {
  ChoiceLimits limits;
  int64_t memory = 0;                              // bytes of each GPU
  int64_t vocab_size = 0;                          // the tokenizer's, as resolve() takes it
  std::optional<int64_t> assumed_vocabulary = {};  // as Plan has it
  size_t most_quick = 64;  // layouts that are planned quickly, those that the estimate likes best
  size_t shown = 8;        // of them that are planned to the byte
  // Told how far a phase is: `what` it does, and how many of its layouts are done. First none; then from several
  // threads, one at a time.
  std::function<void(const char* what, int64_t done, int64_t of)> watch = {};
};

struct FoundLayout {
  ResolvedConfig config;
  RunConfig asked;  // with_layout()
  Plan plan = {};   // by class
  StepTime time = {};
};

struct SearchResult {
  int64_t considered = 0;
  std::map<std::string, int64_t> refused;  // by the key that validation names
  std::map<std::string, std::string> why;  // the first of these refusals, in full
  int64_t possible = 0;                    // not refused
  // Where nothing is possible: the numbers of GPUs next to it with a layout that is, below and above, where there are
  // any up to twice as many.
  std::vector<int64_t> nearest_gpus;
  int64_t too_large = 0;            // values, gradients and optimizer alone do not fit
  int64_t estimated_too_large = 0;  // with activations, by the estimate, and not planned
  int64_t slower = 0;               // by the estimate than all that were planned
  int64_t planned = 0, fit = 0;     // quickly
  std::vector<FoundLayout> best;    // fit, to the byte, the fastest first
  std::vector<FoundLayout> near;    // do not: those that need least
};

// Goes through layout_choices(): drops what validation refuses and what cannot fit, orders the rest by
// estimate_layout(), plans the first by quick_plan(), and of those that fit the fastest to the byte. The same for the
// same input, whatever the machine. Throws ConfigError as Cluster::ceilings() does.
SearchResult search_layouts(const RunConfig& config, const Cluster& cluster, const SearchOptions& options);

}  // namespace witan
