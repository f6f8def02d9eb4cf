// Steps in which experts' rows may overflow the receive buffers or the fixed send capacity
// (moe/dispatchers/receive_buffers.h). Such a step updates nothing and is rerun: with exact counts, then in more and
// more passes until each has room, as a pass of a single expert always has.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "witan/moe/dispatchers/receive_buffers.h"
#include "witan/optim/step_state.h"
#include "witan/parallel/groups.h"
#include "witan/train/step/step_feature.h"

namespace witan {

// Whether experts' rows travel with exact counts that the host need not know: all the way straight to other ranks'
// memory, or through the host's.
bool counts_stay_on_device(const Groups& groups, const MoeConfig& moe);

// Decides which steps exchange experts' rows with a fixed capacity (moe/dispatchers/receive_buffers.h). A step that
// overflows is computed twice, so that some steps after it use exact counts at once: none after the first overflow,
// twice as many after each further one, and half as many after each step that had room. All ranks see the same steps
// and decide alike.
class ExchangeBackoff {
 public:
  static constexpr int64_t kMostWaits = 256;

  // Whether the next step uses exact counts at once.
  bool waits() const { return left_ > 0; }

  // A step tried the fixed capacity.
  void tried(bool overflowed) {
    if (overflowed) left_ = waits_;
    waits_ = overflowed ? std::clamp<int64_t>(2 * waits_, 1, kMostWaits) : waits_ / 2;
  }
  // A step used exact counts at once.
  void waited() { left_ = std::max<int64_t>(left_ - 1, 0); }

 private:
  int64_t waits_ = 0;  // steps after the next overflow
  int64_t left_ = 0;   // of these, still to come
};

class BoundedExperts : public StepFeature {
 public:
  // Whether the configuration bounds anything.
  static bool bounds(const Groups& groups, const MoeConfig& moe);

  // The arguments must outlive it.
  BoundedExperts(Stream& stream, const Groups& groups, const MoeConfig& moe, const StepState& state);

  void begin_again(const StepResult& of) override { passes_ = of.passes; }
  void end_again() override { start_over(); }
  std::vector<StepResult> repetitions() const override;
  void offer(ModelServices& services) override { services.receive_buffers = &receive_buffers_; }
  void before_step(int64_t iteration) override;
  void begin_step() override { receive_buffers_.begin_step(); }
  void before_update(const Tensor& total) override;
  bool repeats(const StepReport::Result& read) override;
  void report(const StepReport::Result& read, StepResult& result) override;
  bool may_repeat() const override { return true; }
  // The host reads how many rows travel unless they do so in parts.
  bool recordable() const override { return !receive_buffers_.bounds_exchanges() || receive_buffers_.in_parts(); }

 private:
  // The numbers of passes in which a step may be rerun, each at least twice the one before. The first is 1 where
  // exchanges are bounded: all rows at once, with exact counts.
  std::vector<int64_t> pass_counts() const;
  void start_over();

  // The first computation of a step: how its rows travelled, and the rows of the fullest buffer or part over its room.
  struct First {
    bool in_parts;
    double fill;
  };

  Stream& stream_;
  const Groups& groups_;
  const MoeConfig& moe_;
  const StepState& state_;
  ReceiveBuffers receive_buffers_;
  ExchangeBackoff backoff_;
  std::optional<int64_t> passes_;  // none: the step is computed for the first time
  std::optional<First> first_;
};

}  // namespace witan
