// The cache of keys or values that generation reads, and attention over it.
//
// Each sequence has a row of the cache. A row is a ring of C slots: position p lies in slot p mod C, so that a layer
// that looks back a window of positions needs few slots, however long its sequences become.
#pragma once

#include <vector>

#include "witan/kernels/attention/attention.h"
#include "witan/kernels/attention/heads.h"
#include "witan/kernels/common/launch.h"

namespace witan::kernels {

// Consecutive tokens of the sequence that has row `row`: positions past .. past + count - 1.
struct CacheRun {
  int64_t row = 0, past = 0, count = 0;
};

// The tokens of a generation step, run after run, with the row and position of each.
struct CacheTokens {
  std::vector<CacheRun> runs;
  Tensor rows, positions;  // [T] int32

  // Runs [first, first + count), whose tokens begin at `token`.
  CacheTokens part(size_t first, size_t count, int64_t token) const {
    const auto begin = runs.begin() + static_cast<std::ptrdiff_t>(first);
    CacheTokens some{{begin, begin + static_cast<std::ptrdiff_t>(count)}, {}, {}};
    int64_t tokens = 0;
    for (const CacheRun& run : some.runs) tokens += run.count;
    some.rows = rows.narrow(0, token, tokens);
    some.positions = positions.narrow(0, token, tokens);
    return some;
  }
};

// cache[rows[t], positions[t] mod C, :] = x[t, :];  cache [R, C, G, hd], x [.., G, hd] of T tokens and of its dtype. No
// two tokens have the same slot.
void append_to_cache(Stream& stream, const Tensor& cache, const Tensor& x, const CacheTokens& tokens);
WITAN_KERNEL_TWINS(append_to_cache)

// append_to_cache() for a cache in e4m3 (base/numbers/float8.h), in which each head of a position has a scale:
//   scales[.., g] = (the largest magnitude of x[t, g, :]) / 448   (kernels/common/fp8_scale.h)
//   cache[.., g, :] = x[t, g, :] / scales[.., g]
// cache [R, C, G, hd] f8, scales [R, C, G] float32.
void append_quantised(Stream& stream, const Tensor& cache, const Tensor& scales, const Tensor& x,
                      const CacheTokens& tokens);
WITAN_KERNEL_TWINS(append_quantised)

// A step's rows of projections, whose heads of queries and keys are normed.
struct CachedProjections {
  Tensor packed;              // [T, (H + G) hd + G hd_v], as of split_heads()
  NormWeight q_norm, k_norm;  // [hd]
  Tensor table;               // [T, R], undefined where rope.dims is 0
  RopeArgs rope;
  double eps = 0;
};
// split_heads() without a rotation, head_norms_forward() and append_to_cache() of keys and values at once, with their
// bits: q [.., H, hd] of T tokens is written, and the tokens' slots of keys [R, C, G, hd] and values [R, C, G, hd_v].
void heads_to_cache(Stream& stream, const Tensor& q, const Tensor& keys, const Tensor& values,
                    const CachedProjections& from, const CacheTokens& tokens);
WITAN_CUDA_TWIN(heads_to_cache)

// The inputs of attention in a generation step: few tokens of many sequences, whose keys and values are in caches. Each
// token reads the keys that it sees once for all query heads of a group.
//
// q [T, 1, H, hd]   y [T, 1, H, hd_v]   keys [R, C, G, hd], values [R, C, G, hd_v]   lse [T, H, 1] accumulator dtype,
// or undefined if not wanted. Token t, at position p = positions[t] of row rows[t], attends to positions 0 .. p of its
// row, or to the last `window` of them if that is not 0; all of these must be in the cache. The mathematics is that of
// attention_forward. The CPU twin has its bits, since keys come in the same order; CUDA's agrees to a few roundings of
// the dtype or, with batch_invariant, has the bits of attention_forward with hints.batch_invariant, if the cache has a
// slot for every position.
//
// Latents (nn/attention/latent.h) are both values and a part of their keys: with value_q [T, 1, H, hd_v], logits are
// scale (q . key + value_q . value).
struct CachedInputs {
  Tensor q, keys, values;
  CacheTokens tokens;
  double scale = 1;
  int64_t window = 0;  // positions that a token sees, itself included; 0: all up to its own
  bool batch_invariant = false;
  Tensor value_q = {};                        // undefined: logits are of keys alone
  Tensor key_scales = {}, value_scales = {};  // of caches in e4m3, as append_quantised() writes them; else undefined
};

// Whether a GPU computes attention over such caches, of queries in their dtype, in tiles on its tensor cores. Other
// kernels, which with batch_invariant are launched for each token by itself, compute the rest.
bool cached_in_tiles(const Tensor& keys, const Tensor& values);

void cached_attention(Stream& stream, const Tensor& y, const Tensor& lse, const CachedInputs& in);
WITAN_KERNEL_TWINS(cached_attention)

}  // namespace witan::kernels
