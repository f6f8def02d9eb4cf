// Rows of packed samples: separate pieces of documents, tokens that are not targets, and padding.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "train/step/run_support.h"

namespace witan::testing {

inline constexpr int64_t kPaddedLength = 16;  // the longest row without its padding

// Row `sample` of the run has two pieces of documents with some tokens that are not targets, or one piece, or nothing.
inline void pad(Batch& batch, int64_t row, int64_t sample, int64_t length) {
  const int64_t real = std::array<int64_t, 6>{16, 9, 0, 13, 3, 6}[static_cast<size_t>(sample) % 6];
  const auto fill = [&](auto& values, int64_t at, auto value) {
    values[static_cast<size_t>(row * length + at)] = value;
  };
  for (int64_t s = 0; s < length; ++s) {
    const bool padding = s >= real;
    fill(batch.sequence_ids, s, padding ? kPadding : static_cast<int32_t>(s >= 5));
    fill(batch.positions, s, static_cast<int32_t>(padding ? s - real : s >= 5 ? s - 5 : s));
    if (padding || s < 2) fill(batch.loss_mask, s, 0.0F);
    if (!padding) continue;
    fill(batch.tokens, s, 0);
    fill(batch.targets, s, 0);
  }
}

// From kPaddedLength on, rows are independent of seq_length, and also of the micro-batch size.
inline std::vector<Batch> padded_batches(const RunConfig& config, const Layout& layout, int rank, int64_t step) {
  RunConfig narrow = config;
  narrow.data.seq_length = kPaddedLength;
  std::vector<Batch> batches = own_batches(narrow, layout, rank, step);
  const int64_t length = config.data.seq_length, sequences = config.train.micro_batch_size;
  const int64_t own = static_cast<int64_t>(batches.size()) * sequences;
  int64_t sample = step * config.train.global_batch_size + layout.data_rank(rank) * own;
  for (Batch& batch : batches) {
    const auto widen = [&](auto& values) {
      auto wide = values;
      wide.assign(static_cast<size_t>(sequences * length), 0);
      for (int64_t b = 0; b < sequences; ++b)
        std::copy_n(values.begin() + b * kPaddedLength, kPaddedLength, wide.begin() + b * length);
      values = std::move(wide);
    };
    widen(batch.tokens), widen(batch.targets), widen(batch.positions);
    widen(batch.sequence_ids), widen(batch.loss_mask);
    batch.sequence_length = length;
    for (int64_t row = 0; row < sequences; ++row) pad(batch, row, sample++, length);
    batch.loss_tokens = std::count(batch.loss_mask.begin(), batch.loss_mask.end(), 1.0F);
  }
  return batches;
}

}  // namespace witan::testing
