// Searches the layouts in which a model fits a number of GPUs, and predicts the step time of each.
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
#include "witan/train/config/resolve.h"

namespace witan {

struct LayoutEstimate {
  double seconds = 0;  // per step
  int64_t state_bytes =
      0;  // bytes of values, gradients and optimizer state on the average rank: a lower bound for the largest rank
  int64_t bytes = 0;  // including activations
};

// Estimates a layout by closed formulas in microseconds, to choose and order the layouts that are worth a plan; all
// that a search shows is planned. Work and traffic follow Narayanan et al. 2021 (arXiv:2104.04473) and Korthikanti et
// al. 2022 (arXiv:2205.05198), as docs/cli.md describes; times come from predict_step().
LayoutEstimate estimate_layout(const ResolvedConfig& config, const Cluster& cluster, const Ceilings& ceilings);

struct SearchOptions {
  ChoiceLimits limits;
  int64_t memory = 0;                              // bytes per GPU
  int64_t vocab_size = 0;                          // the tokenizer's size, for resolve()
  std::optional<int64_t> assumed_vocabulary = {};  // see Plan
  size_t most_quick = 64;                          // layouts that get a quick plan: the best by the estimate
  size_t shown = 8;                                // layouts that are planned exactly and returned
  // Reports the progress of a phase, named `what`, by its number of finished layouts: 0 first, then from several
  // threads, but never concurrently.
  std::function<void(const char* what, int64_t done, int64_t of)> watch = {};
};

struct FoundLayout {
  ResolvedConfig config;
  RunConfig asked;  // the user's config with_layout()
  Plan plan = {};   // one RankPlan per class
  StepTime time = {};
};

struct SearchResult {
  int64_t considered = 0;
  std::map<std::string, int64_t> refused;  // by the key that the error names
  std::map<std::string, std::string> why;  // the first full error for each key
  int64_t possible = 0;                    // accepted by validation
  // If nothing is possible: the nearest smaller and larger numbers of GPUs, up to twice as many, that allow a layout.
  std::vector<int64_t> nearest_gpus;
  int64_t too_large = 0;            // even values, gradients and optimizer state do not fit
  int64_t estimated_too_large = 0;  // do not fit by the estimate, and were not planned
  int64_t slower = 0;               // slower by the estimate than all that were planned
  int64_t planned = 0, fit = 0;     // by quick plans
  std::vector<FoundLayout> best;    // fit by exact plans, fastest first
  std::vector<FoundLayout> near;    // do not fit; smallest memory first
};

// Takes layout_choices(), drops those that validation refuses or that cannot fit, orders the rest by estimate_layout(),
// plans the first with quick_plan(), and plans the fastest that fit exactly. The result depends only on the input, not
// on the machine. Throws ConfigError as Cluster::ceilings() does.
SearchResult search_layouts(const RunConfig& config, const Cluster& cluster, const SearchOptions& options);

}  // namespace witan
