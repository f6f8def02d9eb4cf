// Causal self-attention of one layer: what its kinds (nn/attention/grouped_query.h, nn/attention/latent.h) share. That
// is the logits that QK-clip bounds, the cache of keys and values, and attention over sequences that context-parallel
// ranks divide.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "witan/kernels/attention/attention.h"
#include "witan/kernels/attention/kv_cache.h"
#include "witan/nn/attention/attention_spec.h"
#include "witan/nn/mixer/sequence_state.h"
#include "witan/nn/mixer/token_mixer.h"
#include "witan/nn/parameter.h"
#include "witan/ops/attention/attention.h"
#include "witan/tensor/tensor.h"

namespace witan {

// The logits of a token mixer that QK-clip bounds (kernels/attention/qk_clip.h). Kinds of attention implement it;
// mixers without logits do not.
class ClippedLogits {
 public:
  virtual ~ClippedLogits() = default;

  // From this call on a training forward raises max_logits to the largest logits of this rank's heads; it is [H] of all
  // ranks' heads, in the accumulator dtype. Undefined: no maximum is kept.
  void use_max_logits(Tensor max_logits) { max_logits_ = std::move(max_logits); }

  // A parameter that projects to queries or keys. The rows of its global tensor are ordered by the groups of heads that
  // share keys: in each group the first `rows` project to `of`, the others to `rest`.
  struct Projection {
    // queries_of_shared_keys: queries for the channels of keys that all heads share. others: rows without logits.
    enum class Of : uint8_t { queries, keys, queries_of_shared_keys, others };
    Parameter* parameter;  // never null
    Of of;
    int64_t rows = 0;  // 0: all
    Of rest = Of::others;
  };
  virtual std::vector<Projection> clipped() = 0;
  virtual int64_t logit_heads() const = 0;  // H, of all ranks
  virtual int64_t key_groups() const = 0;   // groups of heads that share keys, of all ranks

 protected:
  Tensor max_logits_;
};

class Attention : public TokenMixer, public ClippedLogits {
 public:
  using TokenMixer::TokenMixer;

  ClippedLogits* clipped_logits() override { return this; }
};

// The channels that a KvCache keeps of each position.
struct CachedChannels {
  int64_t groups = 0;                  // G
  int64_t key_dim = 0, value_dim = 0;  // hd, hd_v
  int64_t window = 0;                  // positions that a token sees; 0: all up to its own
};

// The keys and values of the positions generated so far, of one attention layer.
class KvCache : public SequenceState {
 public:
  // The cache is empty at first. A layer with a window w keeps at most 2 w positions.
  KvCache(Stream& stream, const StateSize& size, const CachedChannels& channels, DType dtype);

  int64_t bytes() const override;
  // A ring holds the positions that were written last: it can be cut as long as it holds a window before the cut.
  int64_t resumable(int64_t wanted, int64_t held, int64_t reach) const override;
  bool repeats_batch_invariant_steps() const override { return kernels::cached_in_tiles(keys, values); }
  void copy_row(Stream& stream, int64_t from, int64_t to) override;

  // Throws ShapeError for a sequence that outgrows its row.
  void require_room(const kernels::CacheTokens& tokens) const;
  // Stores keys and values of tokens, k [1, T, G, hd], v [1, T, G, hd_v]; of a run alone that is longer than its ring,
  // those that stay in it.
  void append(Stream& stream, const Tensor& k, const Tensor& v, const kernels::CacheTokens& tokens) const;

  const Tensor keys, values;  // [R, C, G, hd] and [R, C, G, hd_v]: a ring of C slots for each of R sequences
  const Tensor key_scales, value_scales;  // [R, C, G] float32 with CacheFormat::fp8 (kernels/attention/kv_cache.h)
  const int64_t limit;                    // the most positions of a sequence
};

// The heads with which a layer attends to its cache.
struct CachedHeads {
  // [1, T, H, hd], [1, T, G, hd], [1, T, G, hd_v] of the step's tokens. k and v undefined: they are in the cache, and
  // all runs have one token.
  Tensor q, k, v;
  double scale = 1;     // of logits
  int64_t window = 0;   // positions that a token sees; 0: all up to its own
  Tensor sinks = {};    // [H], or undefined (kernels/attention/attention.h)
  Tensor value_q = {};  // [1, T, H, hd_v]: queries of values, if these are latents (kernels/attention/kv_cache.h)
  bool kept = false;    // the cache, of another layer, has k and v already, and keeps all positions
};

// Attention within a sequence that begins, y [1, T, H, hd_v], without reading a cache.
void attend_whole(Stream& stream, const Tensor& y, const CachedHeads& heads);

// Appends the tokens' keys and values to the cache, unless it has them, and returns the attention output
// [1, T, H, hd_v]. The kernel of training (on a GPU in deterministic mode) computes sequences that begin; a kernel for
// few tokens computes the others. On the CPU and with hints.batch_invariant a token's result does not depend on the
// step's other tokens, and has the bits of the forward of the whole sequence. Throws ShapeError when a sequence
// outgrows the cache.
Tensor attend_with_cache(Stream& stream, const CachedHeads& heads, const kernels::CacheTokens& tokens,
                         const kernels::AttentionHints& hints, const KvCache& cache);

// Gathers the sequence ids [B, S / n] of all ranks' positions into those of whole sequences, [B, S]. A collective.
Tensor gather_sequence_ids(Stream& stream, const Tensor& sequence_ids, Group& context);
// Those of a micro-batch's whole sequences, from `where` or gathered; undefined if each row is one document.
Tensor whole_sequence_ids(Stream& stream, const Positions& where, Group& context);

// Attention of a layer on a rank of the context axis, by the ring or by an exchange of heads.
class ContextAttention {
 public:
  // `tensor`: the number of tensor-parallel ranks, which have divided the heads before.
  ContextAttention(const ContextAxis& context, const AttentionSpec& spec, int64_t tensor);

  // q [B, S / n, H, hd], k [B, S / n, G, hd], v [B, S / n, G, hd_v] of this rank's positions -> [B, S / n, H, hd_v].
  // args and sinks [H] cover all H heads. Each rank uses the part for its own heads, so that its gradient of sinks is a
  // summand.
  Var forward(Tape& tape, const Var& q, const Var& k, const Var& v, const Positions& where,
              const ops::AttentionArgs& args, const Var& sinks = {}) const;

 private:
  Var of_own_heads(Tape& tape, const Var& q, const Var& k, const Var& v, const Positions& where,
                   ops::AttentionArgs args, Var sinks) const;

  Group* group_ = nullptr;  // null: sequences are whole
  bool by_heads_ = false;
};

}  // namespace witan
