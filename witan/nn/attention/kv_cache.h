// Keys and values of the positions generated so far, for one attention layer, and attention over them.
#pragma once

#include "witan/kernels/attention/attention.h"
#include "witan/kernels/attention/kv_cache.h"
#include "witan/nn/mixer/sequence_state.h"

namespace witan {

// The channels of a position in a cache.
struct CachedChannels {
  int64_t groups = 0;                  // G
  int64_t key_dim = 0, value_dim = 0;  // hd, hd_v
  int64_t window = 0;                  // positions that a token sees; 0: all up to its own
};

class KvCache : public SequenceState {
 public:
  // Empty; of a layer with a window w, of at most 2 w positions.
  KvCache(Stream& stream, const StateSize& size, const CachedChannels& channels, DType dtype);

  int64_t bytes() const override { return keys.bytes() + values.bytes(); }
  // A ring holds the latest positions that were written: it can be cut while a window before the cut is among them.
  int64_t resumable(int64_t wanted, int64_t held, int64_t reach) const override;
  void copy_row(Stream& stream, int64_t from, int64_t to) override;

  const Tensor keys, values;  // [R, C, G, hd] and, of values, hd_v: a ring of C slots for each of R sequences
  const int64_t limit;        // most positions of a sequence
};

// What a layer looks up in its cache.
struct CachedHeads {
  Tensor q, k, v;      // [1, T, H, hd], [1, T, G, hd], [1, T, G, hd_v]: of the step's tokens
  double scale = 1;    // of logits
  int64_t window = 0;  // positions that a token sees; 0: all up to its own
  Tensor sinks = {};   // [H], or undefined (kernels/attention/attention.h)
};

// Appends the tokens' keys and values to the cache and gives what the tokens read: [1, T, H, hd_v]. Sequences that
// begin are computed by the kernel that trains (on a GPU, in deterministic mode); others by one for few tokens or, in a
// repeatable way, by that kernel again, token by token. Results for a token do not depend on the step's other tokens:
// on the CPU and with hints.batch_invariant to the bit, and they are those of the forward of the whole sequence. Throws
// ShapeError when a sequence outgrows the cache.
Tensor attend_with_cache(Stream& stream, const CachedHeads& heads, const kernels::CacheTokens& tokens,
                         const kernels::AttentionHints& hints, const KvCache& cache);

}  // namespace witan
