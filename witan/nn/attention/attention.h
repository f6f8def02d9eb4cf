// Causal self-attention of one layer, of whichever kind: siblings of one interface, which a block builds by the layer's
// AttentionSpec.
#pragma once

#include <memory>
#include <vector>

#include "witan/comm/group.h"
#include "witan/kernels/attention/attention.h"
#include "witan/nn/attention/config.h"
#include "witan/nn/attention/kv_cache.h"
#include "witan/nn/dropout.h"
#include "witan/nn/linear.h"
#include "witan/nn/norm.h"

namespace witan {

// The sines and cosines of a micro-batch's positions, for the layers that rotate by these arguments.
struct RotaryTable {
  kernels::RopeArgs rope;
  Tensor angles;  // kernels::rotary_table, [B S, rope.dims]
};

// Where each token of a micro-batch stands.
struct Positions {
  Tensor positions;                      // [B, S] int32
  Tensor sequence_ids;                   // [B, S] int32, or undefined: a token attends to earlier tokens of equal id
  std::vector<RotaryTable> tables = {};  // made once for all layers; a layer makes its own where it is missing here
  kernels::AttentionHints hints = {};
  Tensor whole_ids = {};  // [B, n S]: sequence_ids of whole sequences, where n ranks divide them and attend by heads
  kernels::CacheTokens cached = {};  // of a step of generation: which sequences of the caches the tokens belong to
};

// The angles of positions [B, S], as `where` has them or made anew; undefined where nothing rotates (rope.dims 0).
Tensor rotary_angles(Stream& stream, const Positions& where, const kernels::RopeArgs& rope, DType dtype);

class Attention : public Module {
 public:
  using Module::Module;

  // x [B, S, D] of the residual stream -> the same; where sequences are sharded, of the tokens at this rank's
  // context_positions(). embedded [B, S, G hd_v / n]: the tokens' rows of a value embedding, of all of a sequence where
  // tensor-parallel ranks divide it; undefined where the layer has none.
  virtual Var forward(Tape& tape, const Var& x, const Positions& where, const Randomness& randomness = {},
                      const Var& embedded = {}) = 0;
  // x [1, T, D]: the next tokens of the sequences that where.cached names, whose earlier ones are in the cache. Tape
  // off.
  virtual Var decode(Tape& tape, const Var& x, const Positions& where, const KvCache& cache,
                     const Var& embedded = {}) = 0;
  // An empty cache for decode(), of this layer alone.
  virtual KvCache make_cache(Stream& stream, const CacheSize& size, DType dtype) const = 0;

  // From here on queries, keys and values that are made from latents are not kept for the backward, which makes them
  // again. Attention without latents has no such projections.
  virtual void recompute_up_projections() {}

  // QK-clip (kernels/attention/qk_clip.h). From here on a training forward raises max_logits, [H] of all ranks' heads,
  // accumulator dtype, to the largest logits of this rank's; undefined: it does not.
  void use_max_logits(Tensor max_logits) { max_logits_ = std::move(max_logits); }
  // What makes queries and keys: parameters of which the rows of the global tensor are those of the groups of heads
  // that share keys, in order. Of each group the first `rows` make `of`, the others `behind`.
  struct Projection {
    // Queries, keys, queries that meet keys which are not of the head alone, or what makes no logits.
    enum class Of : uint8_t { queries, keys, queries_of_shared_keys, others };
    Parameter* parameter;  // never null
    Of of;
    int64_t rows = 0;  // 0: all
    Of behind = Of::others;
  };
  virtual std::vector<Projection> clipped() = 0;

 protected:
  Tensor max_logits_;
};

// `context`: the context-parallel ranks, which must outlive the module. `norm`: of queries and keys, where the layer
// normalises them.
std::unique_ptr<Attention> make_attention(const Builder& builder, const AttentionSpec& spec, int64_t width,
                                          Bias bias = Bias::none, const ContextAxis& context = {},
                                          const NormConfig& norm = {});

}  // namespace witan
