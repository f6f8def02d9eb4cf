// The training, validation and test samples of a run as Megatron-LM's pretrain_gpt.py reads them. Source:
// megatron/core/datasets/blended_megatron_dataset_builder.py of github.com/NVIDIA/Megatron-LM.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "witan/data/megatron/blend.h"
#include "witan/data/megatron/gpt_samples.h"

namespace witan::megatron {

struct GptDataOptions {
  std::optional<Blend> blend;  // of all splits, which `shares` says,
  Shares shares{};
  std::array<std::optional<Blend>, 3> blend_of{};  // or of each
  std::array<int64_t, 3> samples{};                // that a run takes of each split
  std::array<bool, 3> whole{};  // splits of which every sample is taken once, instead; their blends have no weights
  int64_t sequence_length = 0;
  uint32_t seed = 1234;
  fs::path cache;  // folder of index files; empty: "cache" beside the first dataset
};

// Indexed by Part; null if a split is empty.
using GptData = std::array<std::shared_ptr<const SampleSource>, 3>;

// Throws ConfigError for weights of a split that is taken whole; DataError, CorruptionError, IoError.
GptData open_gpt_data(const GptDataOptions& options);

}  // namespace witan::megatron
