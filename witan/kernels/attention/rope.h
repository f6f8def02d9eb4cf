// Rotary position embeddings (Su et al., "RoFormer", 2021).
// x, y [B, S, H, hd]   positions [B, S] int32, >= 0
#pragma once

#include <vector>

#include "witan/kernels/common/launch.h"

namespace witan::kernels {

// The change of frequencies for contexts longer than the training's.
struct RopeScaling {
  enum class Type : uint8_t { none, linear, llama3, yarn, longrope };
  Type type = Type::none;
  double factor = 1;
  int64_t original_positions = 0;        // context length of the training
  double beta_fast = 32, beta_slow = 1;  // yarn: pairs with more rotations than beta_fast are not interpolated
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double magnitude = 1;                              // yarn and longrope: factor of sines and cosines
  std::vector<double> factors;                       // longrope: divisor of each pair's frequency

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
  bool tail = false;            // the last R dims are rotated instead, by rope() alone
  int64_t turning_pairs = 0;    // only so many pairs, the first ones, turn; 0: all

  bool operator==(const RopeArgs&) const = default;
};

// Pair i at position p turns by p * base^(-2i/R):  (a, b) -> (a cos - b sin, a sin + b cos).
// Angles are formed in float64. Sines and cosines are computed once per call and position, not per head, and kept in
// `table`, a workspace of [B S, R] in the accumulator dtype. y must not be x.
void rope(Stream& stream, const Tensor& y, const Tensor& table, const Tensor& x, const Tensor& positions,
          const RopeArgs& args);
WITAN_KERNEL_TWINS(rope)

// Radians per position of each of the R/2 pairs, as trained or scaled to longer contexts; every device uses these. With
// f = base^(-2i/R) of pair i, or half truncated (Jordan et al., modded-nanogpt, 2024; R a multiple of 4, at least 8)
// base^(-i/(R/4 - 1)) of the first R/4 pairs, from 1 to 1/base, and 0 of the others. Pairs from args.turning_pairs on
// have the frequency 0 ("proportional" in Hugging Face's modeling_rope_utils.py). With L = scaling.original_positions:
//   none    f
//   linear  f / factor                      (Chen et al., "Positional Interpolation", 2023, arXiv:2306.15595)
//   llama3  f where pair i turns more often than high_freq_factor within L, f / factor where less often than
//           low_freq_factor, and between them a blend of both that is linear in the number of turns
//           (Llama 3.1; Hugging Face's modeling_rope_utils.py)
//   yarn    (1 - r) f + r f / factor, where r rises linearly over pairs, from 0 at the one that turns beta_fast times
//           within L to 1 at the one that turns beta_slow times (Peng et al., "YaRN", 2023, arXiv:2309.00071). The two
//           ends need not be whole pairs.
//   longrope  f / factors[i]                (Ding et al., "LongRoPE", 2024, arXiv:2402.13753)
std::vector<double> rope_frequencies(const RopeArgs& args);

// The number of the pair, seldom whole, that turns `turns` times within L positions, and the inverse.
double rope_pair_of(const RopeArgs& args, double turns);
double rope_turns_of(const RopeArgs& args, double pair);

}  // namespace witan::kernels
