// How fast the pairs of rotary positions turn, as trained or stretched to contexts longer than a model was trained
// with.
#pragma once

#include <vector>

#include "witan/kernels/attention/rope.h"

namespace witan::kernels {

// Radians per position of each of the R/2 pairs: what rotates on any device takes them from here. With f = base^(-2i/R)
// of pair i, or half truncated (Jordan et al., modded-nanogpt, 2024; R a multiple of 4, at least 8) base^(-i/(R/4 - 1))
// of the first R/4 pairs, from 1 to 1/base, and 0 of the others, and L = scaling.original_positions:
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

// The pair, seldom a whole one, that turns `turns` times within L positions; its inverse in `turns`.
double rope_pair_of(const RopeArgs& args, double turns);
double rope_turns_of(const RopeArgs& args, double pair);

}  // namespace witan::kernels
