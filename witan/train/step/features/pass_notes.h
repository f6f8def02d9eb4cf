// Notes what the passes of a step come to on this rank, for runs that compare ranks with each other (replay_interval).
#pragma once

#include "witan/parallel/sharding/grad_buckets.h"
#include "witan/train/step/features/pass_digest.h"
#include "witan/train/step/step_feature.h"

namespace witan {

class PassNotes : public StepFeature {
 public:
  // What it is given must outlive it.
  PassNotes(Stream& stream, GradientBuckets& gradients) : stream_(stream), gradients_(gradients) {}

  // From now on the passes of each step are noted there, before anything is updated by them; null: no longer. Waits for
  // the stream in each step.
  void note(PassDigest* digest);

  void allocate(const StepShape& shape) override { report_ = &shape.report; }
  void after_passes() override;

 private:
  Stream& stream_;
  GradientBuckets& gradients_;
  const StepReport* report_ = nullptr;
  PassDigest* digest_ = nullptr;  // null: passes are not noted
};

}  // namespace witan
