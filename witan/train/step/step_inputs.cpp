#include "witan/train/step/step_inputs.h"

namespace witan {

StepInputs::StepInputs(Stream& stream, const std::vector<Batch>& batches)
    : count_(stream.empty({1}, DType::f64, MemoryTag::workspace)) {
  for (const Batch& batch : batches) {
    const Shape shape{batch.sequences, batch.sequence_length}, flat{shape.elements()};
    for (auto* integers : {&tokens_, &positions_, &sequence_ids_})
      integers->push_back(stream.empty(shape, DType::i32, MemoryTag::workspace));
    targets_.push_back(stream.empty(flat, DType::i32, MemoryTag::workspace));
    masks_.push_back(stream.empty(flat, DType::f32, MemoryTag::workspace));
  }
}

bool StepInputs::fits(const std::vector<Batch>& batches) const {
  if (batches.size() != tokens_.size()) return false;
  for (size_t i = 0; i < batches.size(); ++i)
    if (tokens_[i].shape() != Shape{batches[i].sequences, batches[i].sequence_length}) return false;
  return true;
}

void StepInputs::upload(Stream& stream, const std::vector<Batch>& batches) {
  double count = 0;
  for (size_t i = 0; i < batches.size(); ++i) {
    const Batch& batch = batches[i];
    count += static_cast<double>(batch.loss_tokens);
    stream.write(tokens_[i], batch.tokens.data());
    stream.write(positions_[i], batch.positions.data());
    stream.write(sequence_ids_[i], batch.sequence_ids.data());
    stream.write(targets_[i], batch.targets.data());
    stream.write(masks_[i], batch.loss_mask.data());
  }
  stream.write(count_, &count);
}

ModelInput StepInputs::input(int64_t micro_batch) const {
  const auto i = static_cast<size_t>(micro_batch);
  return {tokens_[i], {positions_[i], sequence_ids_[i]}};
}

}  // namespace witan
