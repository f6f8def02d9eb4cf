#include "witan/generate/recorded_steps.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "witan/kernels/common/early_launches.h"

namespace witan {

RecordedSteps::RecordedSteps(Stream& stream, Transformer& model, const SequenceStates& states, int64_t texts,
                             bool repeatable)
    : stream_(stream),
      model_(model),
      states_(states),
      repeatable_(repeatable),
      inputs_(stream.empty({3, texts}, DType::i32)),
      logits_(stream.empty({texts, model.config().padded_vocab_size()}, model.config().compute_dtype())) {}

bool RecordedSteps::possible(Stream& stream, const ModelConfig& config, const SequenceStates& states, bool repeatable) {
  const auto repeats = [](const auto& state) { return !state || state->repeats_batch_invariant_steps(); };
  if (repeatable && !std::ranges::all_of(states, repeats)) return false;
  if (config.moe.num_experts > 0 && expert_backend(config.moe) == ExpertBackend::sequential) return false;
  return stream.plans_for_cuda() && (stream.is_meta() || stream.queue()->records()) && !stream.times_kernels() &&
         stream.observer() == nullptr;
}

ModelInput RecordedSteps::input_of(const std::vector<kernels::CacheRun>& runs) const {
  const auto n = static_cast<int64_t>(runs.size());
  const auto first = [&](int64_t of) { return inputs_.narrow(0, of, 1).narrow(1, 0, n); };
  const Tensor positions = first(1);
  ModelInput input{first(0), {positions, {}}};
  input.where.cached = {runs, first(2).reshape({n}), positions.reshape({n})};
  input.where.hints.batch_invariant = repeatable_;
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
  const auto texts = static_cast<size_t>(inputs_.size(1));
  std::vector<int32_t> inputs(3 * texts);
  for (size_t i = 0; i < runs.size(); ++i) {
    inputs[i] = tokens[i];
    inputs[texts + i] = static_cast<int32_t>(runs[i].past);
    inputs[2 * texts + i] = static_cast<int32_t>(runs[i].row);
  }
  stream_.write(inputs_, inputs.data());
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
