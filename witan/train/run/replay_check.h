// Finds ranks that compute wrongly (replay_interval): every so many steps each rank computes the micro-batches of the
// rank before it in the ring of replicas (parallel/replica_ring.h), from the same weights and with the same random
// numbers, and both compare losses and gradients to the bit before the step's update. From three replicas on, a third
// computation decides which of two ranks is wrong.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "witan/parallel/replica_ring.h"
#include "witan/train/run/resolve.h"
#include "witan/train/run/run_data.h"
#include "witan/train/step/engine.h"
#include "witan/train/step/features/pass_notes.h"

namespace witan {

// One rank's side.
class ReplayCheck {
 public:
  // All must outlive it.
  ReplayCheck(Engine& engine, const Layout& layout, int rank, const ResolvedConfig& config, const RunData& data);

  // Both are calls of all ranks. Before `step`, whose micro-batches begin with this sample: computes another rank's, if
  // the step is one of the interval.
  void before_step(int64_t step, int64_t updates, int64_t consumed_samples);
  // In the step, before its update: throws CommError, the same on all ranks, where bits differ. `host`: a group of all
  // ranks on a stream of the host.
  void before_update(Group& host, Stream& stream);

 private:
  // Who has computed other bits than whom.
  struct Difference {
    int rank = 0, again = 0;  // whose micro-batches they were, and who computed them again
  };
  // Which samples these are, and what the step is.
  struct Step {
    int64_t step, updates, consumed_samples;
  };

  int64_t micro_batches_of_a_rank() const;
  void replay(int steps_back, PassDigest& digest);
  // In words, on every rank.
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
  bool under_way_ = false;  // between the two calls
};

}  // namespace witan
