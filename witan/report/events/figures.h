// The figures of a whole run, defined once for the page and for programs that read them.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "witan/report/events/metrics.h"

namespace witan {

// The last value of the moving average in a chart; for runs too short for an average, the last step's value.
struct SmoothedFigure {
  double value = 0;
  double span = 0;  // steps of the average; 1: none
  int64_t step = 0;
};
std::optional<SmoothedFigure> training_loss(const Metrics& metrics);    // nothing without a step whose loss is finite
std::optional<SmoothedFigure> training_reward(const Metrics& metrics);  // nothing without rewards of sampled answers
// What the loss of a step counts: "nats per token", or what the objectives of rewards and preferences minimise.
const char* unit_of_loss(const Metrics& metrics);

// The machine's peak GFLOP/s as measured, which is too low if steps exceed it; 0: not measured.
double ceiling_gflops(const Metrics& metrics);

int64_t skipped_steps(const Metrics& metrics);
// Tokens read until the last step; nothing if they are not known.
std::optional<int64_t> tokens_seen(const Metrics& metrics);
// Bytes of the arena of the rank with the largest; nothing without a rank.
std::optional<int64_t> peak_memory(const std::vector<MemoryEvent>& memory);
// The evaluation with the lowest loss, the newer one of equals; nothing without a finite one.
std::optional<EvalEvent> best_eval(const std::vector<EvalEvent>& evals);

// The contents of the page except for curves, samples and configuration. Every run has every key, with null for unknown
// values (docs/runs.md).
nlohmann::ordered_json figures_json(const Metrics& metrics);

// The speed of the median step, over all ranks, which a slow first step or a busy minute does not change. NaN if no
// step recorded it.
struct RunSpeed {
  double tokens_per_s = 0;
  double gflops = 0;
};
RunSpeed run_speed(const Metrics& metrics);

}  // namespace witan
