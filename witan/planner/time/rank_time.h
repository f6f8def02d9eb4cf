// Predicts the time of one rank's step from its calls, and the time of a pipeline from the times of its stages.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "witan/parallel/schedule.h"
#include "witan/planner/plan.h"
#include "witan/planner/speeds/ceilings.h"
#include "witan/planner/speeds/cluster.h"

namespace witan {

// Seconds of a stage's passes of one micro-batch, by chunk of layers.
struct StagePassTimes {
  std::vector<double> forward, backward;
  double of_all_chunks() const;  // sum of all chunks, forward and backward
};

struct PipelineTime {
  double seconds = 0;         // from the first forward to the end of the last backward, over all stages
  std::vector<double> waits;  // time in which each stage neither computes nor has finished, including its transfers
};

// Simulates the schedule that a run follows (parallel/schedule.h) with the times of each stage's passes, which may
// differ: the stage with the head holds up the others. `stages` has one entry per stage, with times for every chunk. A
// transfer takes `send_seconds` from the moment at which both ends have reached it, and blocks both. With very many
// micro-batches those in the middle are assumed to take equally long, as they do.
PipelineTime play_pipeline(const Pipeline& pipeline, const std::vector<StagePassTimes>& stages, double send_seconds);

struct RankTime {
  StagePassTimes passes;  // mean per micro-batch, without transfers between stages
  double rest = 0;        // seconds per step outside the passes
  std::map<std::string, double>
      parts;             // seconds per step, by part of the model; "exchange": communication between ranks
  double transfer = 0;   // seconds of one transfer between stages
  double transfers = 0;  // seconds of all transfers of a step
};

// The time of a rank on a GPU. Kernels and exchanges run one after the other at the given speeds. Only overlapped ones
// hide: gradient reductions behind the backward of the last micro-batch, or of all if gradients are sharded, and
// parameter gathers behind forwards, except for the first and last of them. They slow down what they hide behind.
// So do activations that move to the host and back; what takes longer than the pass beside it is waited for.
// Exchanges within a host use the cluster's links, those between hosts LinkClock's rates. Waiting for a busier peer is
// not counted.
class GpuClock {
 public:
  // All arguments must outlive this. `f32_flops`: float32 FLOP/s of a GPU, at which Shampoo and SOAP multiply.
  GpuClock(const Plan& plan, const RunConfig& config, const GpuSpeeds& speeds, const Cluster& cluster,
           double f32_flops);

  RankTime time_of(const RankPlan& rank) const;
  double evaluation_seconds(const RankPlan& rank) const;

 private:
  // Exchanges that overlap with the kernels of a pass.
  struct Beside {
    double seconds = 0, calls = 0;
  };
  double seconds_of(const LinkClock& links, const CallKind& kind, const Cost& cost) const;
  double exchange_seconds(const LinkClock& links, const CallKind& kind, const Cost& cost) const;
  void wait_for_host(const RankPlan& rank, RankTime& time) const;
  void hide(const Beside& beside, double behind, std::vector<double>& passes, RankTime& time) const;

  const Plan& plan_;
  const RunConfig& config_;
  const GpuSpeeds& speeds_;
  const Cluster& cluster_;
  const double wide_flops_;  // rate of the optimizer's float32 products; 0: the same as for others
  const Layout layout_;
};

// Whether the call is a transfer between pipeline stages, which the schedule makes.
bool is_transfer(const CallKind& kind);

}  // namespace witan
