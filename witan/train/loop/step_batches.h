// The batches of a run's steps: those of a loader or, with rollouts, sampled ones.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "witan/data/batches/loader.h"
#include "witan/train/rollouts/rollouts.h"

namespace witan {

class StepBatches {
 public:
  // What is in `parts` must outlive it.
  StepBatches(Rollouts::Parts parts, BatchRamp ramp) : parts_(std::move(parts)), ramp_(std::move(ramp)) {}

  // Begins at the sample after those that the state has consumed. With rollouts it throws DataError if the answer of a
  // conversation that is drawn begins beyond the run's sequences. Returns a warning about prompts, or an empty text.
  std::string open(const TrainState& state);
  // This rank's micro-batches of `step` (from 1), whose first sample is `consumed`. Collective with rollouts, and
  // throws what Rollouts::next() does; empty if the run stops instead.
  std::vector<Batch> next(int64_t step, int64_t consumed);
  // Why it does.
  RunEnd stopped() const { return rollouts_ ? rollouts_->stopped() : RunEnd::none; }

  // The mean reward of held-out prompts, with rollout_eval_prompts; collective. Nothing without, if ranks stop, or if a
  // reward fails, which the next step would meet again: then it calls `warn`.
  std::optional<double> held_out_reward(const std::function<void(const std::string&)>& warn);

  bool samples_answers() const { return rollouts_.has_value(); }
  Rollouts& rollouts() { return *rollouts_; }
  // Whether no token of the batches counts, on any rank: the rewards of each prompt's answers are equal, or the
  // answers were cut.
  bool nothing_counts() const { return rollouts_ && rollouts_->nothing_counts(); }
  // Adds the figures of the sampled answers to the step's, and takes those out that are means over no token.
  void complete(StepResult& result) const;
  // On rank 0, once for each time that no step has had anything to learn from for a while; else empty.
  std::string warning();
  double waited_seconds() const { return loader_ ? loader_->waited_seconds() : 0; }

 private:
  LoaderOptions loader_options() const;

  Rollouts::Parts parts_;
  BatchRamp ramp_;
  std::optional<Loader> loader_;      // empty with rollouts
  std::optional<Rollouts> rollouts_;  // empty without
  int64_t idle_steps_ = 0;            // in a row
};

}  // namespace witan
