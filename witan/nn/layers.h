// The small layers of a model: norms, dropout and the token embedding.
#pragma once

#include "witan/autograd/tape.h"
#include "witan/base/config/fields.h"
#include "witan/kernels/pointwise/dropout.h"
#include "witan/nn/module.h"
#include "witan/ops/norm/norm.h"
#include "witan/ops/vocabulary/vocabulary.h"

namespace witan {

struct NormConfig {
  std::string normalization = "RMSNorm";
  double norm_epsilon = 1e-5;
  bool norm_weight = true;          // false: rows are normalised but not scaled
  bool norm_bias = false;           // LayerNorm only
  bool apply_layernorm_1p = false;  // rows are scaled by 1 + weight

  Fields fields();
  void validate() const;  // throws ConfigError
};

// RMSNorm or LayerNorm, as the configuration says.
class Norm : public Module {
 public:
  // `sharded`: the ranks of the tensor axis hold equal parts of the D channels of x and of the weight, and normalise
  // over all D (RMSNorm only). Otherwise each rank has whole rows.
  Norm(const Builder& builder, const NormConfig& config, int64_t width, bool sharded = false);

  // x [.., D] -> [.., D]. With `rematerialise`, later ops keep x instead of the output and normalise again.
  Var forward(Tape& tape, const Var& x, bool rematerialise);
  // sum = a + b and its norm; sum = a if b is undefined.
  ops::SumAndNorm forward_sum(Tape& tape, const Var& a, const Var& b, bool rematerialise);

  // For callers that fuse the norm with other work. The norm must have a weight.
  Parameter& weight() { return *weight_; }
  const NormConfig& config() const { return config_; }

 private:
  Var weight(Tape& tape);  // undefined if there is none

  NormConfig config_;
  Group* sums_over_ = nullptr;  // the ranks that hold the parts of a row; null: rows are whole
  Parameter *weight_ = nullptr, *bias_ = nullptr;
};

// The source of all dropout masks of one micro-batch. Without a step, in evaluation and generation, nothing is dropped.
struct Randomness {
  uint64_t seed = 0;
  Tensor step = {};         // StepState's, float64 [kStepValues]
  int64_t micro_batch = 0;  // number in the global batch, independent of the rank that runs it
  // The positions of this rank's tokens in sequences of sequence_length. 0: this rank has whole sequences.
  kernels::PositionRuns positions = {};
  int64_t sequence_length = 0;
  // Draws number a row's positions as if the row had at least this many. Padded micro-batches set kCountedPositions, so
  // that a token draws the same numbers however far its row is padded. 0: the row's own length.
  int64_t counted_positions = 0;
};
inline constexpr int64_t kCountedPositions = int64_t{1} << 24;

// The part of a tensor [B, S, ..] of the residual stream that this rank holds, with `token_elements` elements a token.
// Other context-parallel ranks, and the ranks of an axis that divides tokens, may hold other positions of its B
// sequences.
kernels::DroppedPart part_of(const Randomness& randomness, int64_t positions, int64_t token_elements,
                             const TensorAxis* divides_tokens);

// Dropout at one place of the model. Its path distinguishes its draws from those of other places.
class Dropout {
 public:
  Dropout(const Builder& builder, double p);

  // x [B, S, D] of the residual stream -> [B, S, D]. A token's mask does not depend on which rank holds it. Returns x
  // itself if p is 0 or the randomness has no step.
  Var forward(Tape& tape, const Var& x, const Randomness& randomness) const;
  // For ops that drop inside and know their tokens' positions.
  kernels::Dropout drawn_from(const Randomness& randomness) const;

 private:
  double p_;
  uint64_t site_;
  std::optional<TensorAxis> divides_tokens_;  // none: every rank has all tokens
};

// NEFTune (Jain et al., 2023, arXiv:2310.05914): uniform noise on embeddings while they are trained on, in
// +-alpha / sqrt(L D) for sequences of L tokens of D channels.
class EmbeddingNoise {
 public:
  EmbeddingNoise(const Builder& builder, double alpha);

  // x [B, S, D] of the residual stream -> [B, S, D]. A token's noise does not depend on which rank holds it. Returns x
  // itself if alpha is 0 or the randomness has no step.
  Var forward(Tape& tape, const Var& x, const Randomness& randomness) const;

 private:
  double alpha_;
  uint64_t site_;
  std::optional<TensorAxis> divides_tokens_;
};

// The token embedding, and the output head that may share its weight. The ranks of the tensor axis divide the V
// entries, as evenly as whole entries can be divided, or the channels of every entry.
class Embedding : public Module {
 public:
  enum class Divided : uint8_t { entries, channels };

  // weight [V, D], V = size + padding. The padding entries, which no id names (ops/vocabulary/vocabulary.h), are and
  // stay 0.
  Embedding(const Builder& builder, int64_t size, int64_t width, int64_t padding = 0,
            Divided divided = Divided::entries);

  // Whether the rows enter the model or are used after its layers, as the weight in logits() is. The gradient of a use
  // after the layers goes to the tied copy, which the last pipeline stage holds.
  enum class Place : uint8_t { before_layers, behind_layers };

  // ids int32 [..] -> [.., D]. Divided by entries, rows of other ranks' entries are 0, so that ranks have summands;
  // divided by channels, the result is this rank's [.., D/n].
  Var forward(Tape& tape, const Tensor& ids, Place place = Place::before_layers);
  // The logits of a tied head, divided by entries: x [.., D] from to_sharded_layer() -> [.., V/n]
  Var logits(Tape& tape, const Var& x);

  std::string_view cost_part() const override { return "embedding"; }

 private:
  ops::VocabularyPart part_;
  Parameter& weight_;
};

}  // namespace witan
