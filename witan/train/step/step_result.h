// The result of a step, for the trainer, recorders and tests.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "witan/moe/routers/router_sums.h"
#include "witan/report/events/step_scalars.h"
#include "witan/train/state/run_end.h"
#include "witan/train/trace/times.h"

namespace witan {

// The norms of gradients of the parts of a model, before clipping.
struct LayerNorms {
  double embedding = 0;        // with learned positions and value embeddings; a tied one, which is the head too
  std::vector<double> layers;  // those of MTP modules last
  double head = 0;             // with the last norm
};

struct StepResult {
  int64_t samples = 0;             // of the global batch; 0: global_batch_size
  double loss = 0;                 // the objective's first: cross entropy per target, in nats
  std::vector<double> mtp_losses;  // of each MTP module, per target of its own, in nats
  // All other losses that modules and the objective record, but those of routers, by their names and without their
  // coefficients. Those of several modules under one name are added up.
  std::vector<std::pair<std::string, double>> other_losses;
  double learning_rate = 0;               // [optimizer]'s after the step; where iterations are counted: during it
  double gradient_norm = 0;               // before clipping
  std::optional<LayerNorms> layer_norms;  // of the gradients, if they were asked for
  bool skipped = false;                   // nothing was updated: gradients were not finite, or the step was a spike
  bool held = false;                      // nothing was updated, since no token counted (Engine::hold())
  bool spike = false;                     // the step was skipped although all values were finite
  StepScalars scalars;                    // figures that some steps have
  // Statistics of activations by name, of each layer, those of MTP modules last; NaN where a layer has none. Empty
  // where the step did not measure them (log_activations).
  std::map<std::string, std::vector<double>> activations;
  // Passes into which experts' rows were divided when the step was rerun; 1: all had room
  // (moe/dispatchers/receive_buffers.h).
  int64_t passes = 1;
  // The largest number of rows that a rank had for another over the fixed send capacity, in a step that was rerun with
  // exact counts for that reason; else 0.
  double exchange_fill = 0;
  StepStatistics router;      // of all micro-batches; empty in a dense model
  RunEnd end = RunEnd::none;  // why ranks ask for the run to end after this step; the same on all ranks
  StepTimes times;            // of this rank
};

}  // namespace witan
