// Notes the results of a step's passes on this rank, for runs that compare ranks with each other (replay_interval).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "witan/nn/parameter.h"
#include "witan/parallel/sharding/grad_buckets.h"
#include "witan/parallel/sharding/grad_reduce.h"
#include "witan/train/step/step_feature.h"

namespace witan {

// The bits of a step's passes on a rank: hashes of the losses of its micro-batches, and of every gradient after each
// micro-batch, before ranks sum them.
class PassDigest {
 public:
  struct Entry {
    int64_t micro_batch = 0;  // of the rank, from 0
    std::string what;         // "loss", or the name of the parameter that the gradient is of
    uint64_t hash = 0;
  };

  // `parameters`: the model's, in its order.
  explicit PassDigest(const std::vector<Parameter*>& parameters);

  void clear() { entries_.clear(); }
  // The stream that computed them must have been waited for.
  void add_loss(int64_t micro_batch, const Tensor& loss);
  void add_gradients(const GradBucket& bucket);

  // In the order in which a rank computes them: a loss, then gradients from the last layer to the first.
  std::vector<Entry> entries() const;
  uint64_t hash() const;  // of all entries

 private:
  std::map<const Parameter*, int64_t> places_;            // from 1, in the order in which a backward comes to them
  std::map<std::pair<int64_t, int64_t>, Entry> entries_;  // by micro-batch and place; the loss is at 0
};

class PassNotes : public StepFeature {
 public:
  // The arguments must outlive it.
  PassNotes(Stream& stream, GradientBuckets& gradients) : stream_(stream), gradients_(gradients) {}

  // Notes the passes of each step there, before its update; nullptr ends that. Waits for the stream in each step.
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
