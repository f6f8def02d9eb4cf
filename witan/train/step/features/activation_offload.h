// Keeps the inputs of recomputed blocks in host memory between forward and backward (autograd/offload_store.h).
#pragma once

#include <cstdint>
#include <vector>

#include "witan/autograd/offload_store.h"
#include "witan/parallel/groups.h"
#include "witan/train/config/config.h"
#include "witan/train/step/step_feature.h"

namespace witan {

// What a rank moves to the host's memory and back. The input of the model's last block stays on the device, since its
// backward comes first.
struct OffloadedInputs {
  int64_t bytes = 0;            // of one input [B, S, D] on this rank
  std::vector<int64_t> inputs;  // of one micro-batch, by chunk of this stage's layers
  int64_t most = 0;             // inputs in host memory at the same time

  // `tokens`: [T], of a micro-batch on this rank.
  OffloadedInputs(const RunConfig& config, int stage, int64_t micro_batches, int64_t tokens);
  int64_t host_bytes() const { return most * OffloadStore::room_for(bytes); }
};

class ActivationOffload : public StepFeature {
 public:
  static bool applies(const RunConfig& config) {
    return config.parallel.offloads() && config.model.recompute() == Recompute::full;
  }

  // All arguments must outlive it.
  ActivationOffload(Stream& stream, const Groups& groups, const RunConfig& config)
      : groups_(groups), config_(config), store_(stream) {}

  void offer(ModelServices& services) override { services.offload = &store_; }
  void allocate(const StepShape& shape) override;
  void release() override { store_.reserve(0); }
  void begin_pass(Pass pass, int64_t micro_batch) override;
  void end_pass() override;

  const OffloadStore& store() const { return store_; }

 private:
  const Groups& groups_;
  const RunConfig& config_;
  OffloadStore store_;
  bool forward_ = false;
};

}  // namespace witan
