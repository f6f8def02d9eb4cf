// Rotary position embeddings (Su et al., "RoFormer", 2021).
// x, y [B, S, H, hd]   positions [B, S] int32, >= 0
#pragma once

#include <vector>

#include "witan/kernels/common/launch.h"

namespace witan::kernels {

// How frequencies are changed for contexts longer than a model was trained with.
struct RopeScaling {
  enum class Type : uint8_t { none, linear, llama3, yarn, longrope };
  Type type = Type::none;
  double factor = 1;
  int64_t original_positions = 0;                    // of the context before
  double beta_fast = 32, beta_slow = 1;              // of yarn: turns within it between which frequencies are blended
  double low_freq_factor = 1, high_freq_factor = 4;  // of llama3
  double magnitude = 1;                              // of yarn and longrope: what sines and cosines are multiplied by
  std::vector<double> factors;                       // of longrope: what the frequency of each pair is divided by

  bool operator==(const RopeScaling&) const = default;
};

struct RopeArgs {
  double base = 10000;
  int64_t dims = 0;  // R: the first R of hd dims are rotated, the others copied; even, <= hd
  bool interleaved =
      false;             // pairs are (2i, 2i+1); otherwise (i, i + R/2): rotate-half, as Megatron-LM and Hugging Face
  bool inverse = false;  // by the negative angle: the transpose, which is the backward
  RopeScaling scaling = {};
  bool half_truncated = false;  // the second half of the frequencies is 0

  bool operator==(const RopeArgs&) const = default;
};

// Pair i at position p turns by p * base^(-2i/R):  (a, b) -> (a cos - b sin, a sin + b cos).
// Angles are formed in float64. Sines and cosines are computed once per call and position, not per head, and kept in
// `table`, a workspace of [B S, R] in the accumulator dtype. y must not be x.
void rope(Stream& stream, const Tensor& y, const Tensor& table, const Tensor& x, const Tensor& positions,
          const RopeArgs& args);
WITAN_KERNEL_TWINS(rope)

}  // namespace witan::kernels
