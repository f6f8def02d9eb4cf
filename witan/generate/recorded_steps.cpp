#include <numeric>
#include <utility>

#include "witan/generate/generation_batch.h"
#include "witan/kernels/common/early_launches.h"
#include "witan/tensor/queue.h"

namespace witan {

RecordedSteps::RecordedSteps(Stream& stream, Transformer& model, const SequenceStates& states, int64_t texts)
    : stream_(stream),
      model_(model),
      states_(states),
      tokens_(stream.empty({texts}, DType::i32)),
      positions_(stream.empty({texts}, DType::i32)),
      rows_(stream.empty({texts}, DType::i32)),
      logits_(stream.empty({texts, model.config().padded_vocab_size()}, model.config().compute_dtype())) {}

bool RecordedSteps::possible(Stream& stream, const ModelConfig& config) {
  if (config.moe.num_experts > 0 && expert_backend(config.moe) == ExpertBackend::sequential) return false;
  return stream.plans_for_cuda() && (stream.is_meta() || stream.queue()->records()) && !stream.times_kernels() &&
         stream.observer() == nullptr;
}

ModelInput RecordedSteps::input_of(const std::vector<kernels::CacheRun>& runs) const {
  const auto n = static_cast<int64_t>(runs.size());
  const auto first = [&](const Tensor& all) { return all.narrow(0, 0, n); };
  ModelInput input{first(tokens_).reshape({1, n}), {first(positions_).reshape({1, n}), {}}};
  input.where.cached = {runs, first(rows_), first(positions_)};
  return input;
}

void RecordedSteps::compute(const ModelInput& input) {
  const kernels::EarlyLaunches early;
  const int64_t n = input.tokens.elements();
  std::vector<int32_t> all(static_cast<size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  const Residual x = model_.read(stream_, input, states_);
  stream_.copy(logits_.narrow(0, 0, n), model_.logits(stream_, x, all));
}

Tensor RecordedSteps::logits(const std::vector<kernels::CacheRun>& runs, std::span<const int32_t> tokens) {
  const ModelInput input = input_of(runs);
  std::vector<int32_t> positions, rows;
  for (const kernels::CacheRun& run : runs) {
    positions.push_back(static_cast<int32_t>(run.past));
    rows.push_back(static_cast<int32_t>(run.row));
  }
  stream_.write(input.where.cached.positions, positions.data());
  stream_.write(input.where.cached.rows, rows.data());
  stream_.write(input.tokens, tokens.data());
  Recording& recording = recorded_[input.tokens.elements()];
  if (stream_.is_meta() || !std::exchange(recording.warm, true)) {
    compute(input);
  } else {
    if (!recording.graph) recording.graph = record(*stream_.queue(), [&] { compute(input); });
    recording.graph->launch();
  }
  return logits_.narrow(0, 0, input.tokens.elements());
}

}  // namespace witan
