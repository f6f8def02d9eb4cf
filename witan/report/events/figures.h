// The figures of a whole run: one definition for the page, and for programs that read them.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "witan/report/events/metrics.h"

namespace witan {

// The end of the moving average that the loss chart shows; where a run is too short for one, the last step's loss.
struct TrainingLoss {
  double value = 0;  // nats per token
  double span = 0;   // steps of the average; 1: none
  int64_t step = 0;
};
std::optional<TrainingLoss> training_loss(const Metrics& metrics);  // nothing without a step whose loss is finite

// Peak GFLOP/s of the machine, which was measured too low where steps exceed it; 0: not measured.
double ceiling_gflops(const Metrics& metrics);

int64_t skipped_steps(const Metrics& metrics);
// Read until the last step; nothing where either is not known.
std::optional<int64_t> tokens_seen(const Metrics& metrics);
// Bytes of the arena of the rank with the largest; nothing without a rank.
std::optional<int64_t> peak_memory(const std::vector<MemoryEvent>& memory);
// The evaluation with the lowest loss, the newer one of equals; nothing without a finite one.
std::optional<EvalEvent> best_eval(const std::vector<EvalEvent>& evals);

// What the page shows but for curves, samples and configuration. Every key is there in every run, with null where a run
// has nothing to say (docs/runs.md).
nlohmann::ordered_json figures_json(const Metrics& metrics);

// Those of the median step, over all ranks: what most steps do, whatever the first one or a busy minute took. NaN where
// no step recorded one.
struct RunSpeed {
  double tokens_per_s = 0;
  double gflops = 0;
};
RunSpeed run_speed(const Metrics& metrics);

}  // namespace witan
