// Finds ranks that compute wrong values (replay_interval). At an interval each rank also computes the micro-batches of
// the rank before it in the ring of replicas (parallel/layout.h), from the same weights and with the same random
// numbers, and the two compare losses and gradients to the bit before the step's update. With three or more replicas a
// third computation decides which of the two is wrong.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "witan/parallel/layout.h"
#include "witan/train/config/resolve.h"
#include "witan/train/data/run_data.h"
#include "witan/train/step/engine.h"
#include "witan/train/step/features/pass_notes.h"

namespace witan {

// One rank's side.
class ReplayCheck {
 public:
  // All must outlive it.
  ReplayCheck(Engine& engine, const Layout& layout, int rank, const ResolvedConfig& config, const RunData& data);

  // Before `step`, whose micro-batches begin with sample `consumed_samples`: computes another rank's micro-batches if
  // the step is a multiple of the interval. Called by all ranks, as before_update() is.
  void before_step(int64_t step, int64_t updates, int64_t consumed_samples);
  // Within the step, before its update: throws CommError, the same on all ranks, if bits differ. `host`: a group of all
  // ranks on a stream of the host.
  void before_update(Group& host, Stream& stream);

 private:
  // A pair of ranks that disagree.
  struct Difference {
    int rank = 0, again = 0;  // the rank of the micro-batches, and the one that computed them again
  };
  // The step that is checked.
  struct Step {
    int64_t step, updates, consumed_samples;
  };

  int64_t micro_batches_of_a_rank() const;
  void replay(int steps_back, PassDigest& digest);
  // The error message, on every rank.
  std::string describe(Group& host, Stream& stream, const std::vector<Difference>& differences,
                       const std::vector<int64_t>& own, const std::vector<int64_t>& again);

  Engine& engine_;
  const Layout& layout_;
  const int rank_;
  const ResolvedConfig& config_;
  const RunData& data_;
  ReplicaRing ring_;
  PassDigest own_, again_;
  Step step_{};
  bool under_way_ = false;  // between before_step() and before_update()
};

}  // namespace witan
