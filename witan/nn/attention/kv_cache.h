// Keys and values of the positions generated so far, for one attention layer, and attention over them.
#pragma once

#include "witan/kernels/attention/attention.h"
#include "witan/kernels/attention/kv_cache.h"

namespace witan {

struct KvCache {
  Tensor keys, values;  // [R, C, G, hd] and, of values, hd_v: a ring of C slots for each of R sequences
  int64_t limit = 0;    // most positions of a sequence
};

// How much a cache holds.
struct CacheSize {
  int64_t rows = 1;       // sequences
  int64_t positions = 0;  // of the longest
  // Of layers with a window as well: what kernels need which repeat the bits of the training forward on a GPU.
  bool all_positions = false;
};

// What a layer looks up in its cache.
struct CachedHeads {
  Tensor q, k, v;      // [1, T, H, hd], [1, T, G, hd], [1, T, G, hd_v]: of the step's tokens
  double scale = 1;    // of logits
  int64_t window = 0;  // positions that a token sees; 0: all up to its own
  Tensor sinks = {};   // [H], or undefined (kernels/attention/attention.h)
};

// An empty cache of G groups; of a layer with a window w, of at most 2 w positions.
KvCache make_kv_cache(Stream& stream, const CacheSize& size, int64_t groups, int64_t key_dim, int64_t value_dim,
                      int64_t window, DType dtype);

// Appends the tokens' keys and values to the cache and gives what the tokens read: [1, T, H, hd_v]. Sequences that
// begin are computed by the kernel that trains (on a GPU, in deterministic mode); others by one for few tokens or, in a
// repeatable way, by that kernel again, token by token. Results for a token do not depend on the step's other tokens:
// on the CPU and with hints.batch_invariant to the bit, and they are those of the forward of the whole sequence. Throws
// ShapeError when a sequence outgrows the cache.
Tensor attend_with_cache(Stream& stream, const CachedHeads& heads, const kernels::CacheTokens& tokens,
                         const kernels::AttentionHints& hints, const KvCache& cache);

}  // namespace witan
