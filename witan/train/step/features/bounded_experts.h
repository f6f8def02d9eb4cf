// Steps in which rows of experts may have no room, in receive buffers or in what ranks send each other
// (moe/expert_pools.h). Such a step updates nothing and is made again: with rows exchanged as they come, then in more
// waves until each has room, as one of a single expert always has.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "witan/moe/expert_pools.h"
#include "witan/optim/step_state.h"
#include "witan/parallel/groups.h"
#include "witan/train/step/step_feature.h"

namespace witan {

// Whether experts' rows go straight to other ranks' memory, all the way.
bool experts_go_by_peers(const Groups& groups, const MoeConfig& moe);

// When steps exchange experts' rows in parts of a bounded size (moe/expert_pools.h). One that overflows is made twice,
// so that after it some steps exchange rows as they come: none after the first, then twice as many after each further
// one, and half as many after each that had room. All ranks see the same steps, and so decide alike.
class ExchangeBackoff {
 public:
  static constexpr int64_t kMostWaits = 256;

  // Whether the next step is not to try parts.
  bool waits() const { return left_ > 0; }

  // A step was made in parts.
  void tried(bool overflowed) {
    if (overflowed) left_ = waits_;
    waits_ = overflowed ? std::clamp<int64_t>(2 * waits_, 1, kMostWaits) : waits_ / 2;
  }
  // A step was made without having tried.
  void waited() { left_ = std::max<int64_t>(left_ - 1, 0); }

 private:
  int64_t waits_ = 0;  // steps after the next overflow
  int64_t left_ = 0;   // of them
};

class BoundedExperts : public StepFeature {
 public:
  // Whether the configuration bounds anything.
  static bool bounds(const Groups& groups, const MoeConfig& moe);

  // What it is given must outlive it.
  BoundedExperts(Stream& stream, const Groups& groups, const MoeConfig& moe, const StepState& state);

  // The numbers of waves in which a step may run again, each at least twice the one before. The first is 1 where
  // exchanges are bounded: all rows at once, as they come.
  std::vector<int64_t> wave_counts() const;
  // What is computed until restore() or the next report is in so many waves, with rows exchanged as they come.
  void divide(int64_t waves) { waves_ = waves; }
  void restore();

  void begin_again(const StepResult& of) override { divide(of.waves); }
  void end_again() override { restore(); }
  void offer(ModelServices& services) override { services.pools = &pools_; }
  void before_step(int64_t iteration) override;
  void begin_step() override { pools_.begin_step(); }
  void before_update(const Tensor& total) override;
  bool repeats(const StepReport::Result& read) override;
  void report(const StepReport::Result& read, StepResult& result) override;
  bool may_repeat() const override { return true; }
  // The host reads how many rows travel unless they do so in parts.
  bool recordable() const override { return !pools_.bounds_exchanges() || pools_.in_parts(); }

 private:
  // The first computation of a step: how its rows travelled, and what the fullest pool or part had, over its room.
  struct First {
    bool in_parts;
    double fill;
  };

  Stream& stream_;
  const Groups& groups_;
  const MoeConfig& moe_;
  const StepState& state_;
  ExpertPools pools_;
  ExchangeBackoff backoff_;
  std::optional<int64_t> waves_;  // none: a step is made for the first time
  std::optional<First> first_;
};

}  // namespace witan
