// The micro-batches of a step on the device. Their buffers keep their addresses from step to step, so that a
// captured step finds the next batch where it found the last.
#pragma once

#include <vector>

#include "witan/data/batch.h"
#include "witan/model/transformer.h"

namespace witan {

class StepInputs {
 public:
  // Takes buffers for batches of these sizes from the stream's arena.
  StepInputs(Stream& stream, const std::vector<Batch>& batches);

  // Whether these batches fit the buffers.
  bool fits(const std::vector<Batch>& batches) const;
  // On the meta device batches need only their sizes.
  void upload(Stream& stream, const std::vector<Batch>& batches);

  int64_t micro_batches() const { return static_cast<int64_t>(tokens_.size()); }
  ModelInput input(int64_t micro_batch) const;  // tokens, positions and sequence ids [B, S]
  const Tensor& targets(int64_t micro_batch) const { return targets_[static_cast<size_t>(micro_batch)]; }  // [B S] i32
  const Tensor& mask(int64_t micro_batch) const { return masks_[static_cast<size_t>(micro_batch)]; }       // [B S] f32
  const Tensor& target_count() const { return count_; }  // [1] float64: of this rank's batches, until it is reduced

 private:
  std::vector<Tensor> tokens_, positions_, sequence_ids_, targets_, masks_;  // by micro-batch
  Tensor count_;
};

}  // namespace witan
