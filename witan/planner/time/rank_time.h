// How long one rank's step takes, from the calls that it makes: apart what a pipeline's schedule moves, and what waits
// for no other stage.
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

// Seconds of a stage's passes of one micro-batch, by chunk of its layers.
struct StagePassTimes {
  std::vector<double> forward, backward;
  double of_all_chunks() const;  // forward and backward
};

struct PipelineTime {
  double seconds = 0;         // from the first forward to the end of the last backward, of any stage
  std::vector<double> waits;  // of it, for which each stage neither computes nor has finished; with its transfers
};

// `stages`: as many as the pipeline has, each with times for every chunk. A transfer takes `send_seconds` from the
// moment at which both ends have come to it, and holds up both. Of very many micro-batches those in the middle are
// taken to last as long as each other, as they do.
PipelineTime play_pipeline(const Pipeline& pipeline, const std::vector<StagePassTimes>& stages, double send_seconds);

struct RankTime {
  StagePassTimes passes;                // of one micro-batch, on average; transfers between stages are not among them
  double rest = 0;                      // of a step, outside the passes
  std::map<std::string, double> parts;  // of a step, by part of the model; "exchange": between ranks
  double transfer = 0;                  // of one between stages
  double transfers = 0;                 // of all of a step
};

// On GPUs. Kernels and exchanges take what `speeds` says, one after the other, but for what is beside them: reductions
// of gradients hide behind the backward of the last micro-batch, or of all where gradients are sharded, and gathers of
// parameters behind forwards, except for the first and last of them; and they slow down what they hide behind.
// Exchanges within a host go at the cluster's links, those between hosts as LinkClock says. Nobody waits for a busier
// peer.
class GpuClock {
 public:
  // All of which must outlive it. `f32_flops`: of a GPU, which Shampoo and SOAP multiply at.
  GpuClock(const Plan& plan, const RunConfig& config, const GpuSpeeds& speeds, const Cluster& cluster,
           double f32_flops);

  RankTime time_of(const RankPlan& rank) const;
  double evaluation_seconds(const RankPlan& rank) const;

 private:
  // What is beside kernels in a pass.
  struct Beside {
    double seconds = 0, calls = 0;
  };
  double seconds_of(const LinkClock& links, const CallKind& kind, const Cost& cost) const;
  double exchange_seconds(const LinkClock& links, const CallKind& kind, const Cost& cost) const;
  void hide(const Beside& beside, double behind, std::vector<double>& passes, RankTime& time) const;

  const Plan& plan_;
  const RunConfig& config_;
  const GpuSpeeds& speeds_;
  const Cluster& cluster_;
  const double wide_flops_;  // of an optimizer's products; 0: they are like others
  const Layout layout_;
};

// Whether the call is a transfer between a pipeline's stages, which its schedule makes.
bool is_transfer(const CallKind& kind);

}  // namespace witan
