// Compressed attention of DeepSeek-V4 (2026): all heads share one key, which is also the value, and a token attends to
// a window of keys and to entries, each made of a window of m tokens. Entries either overlap and are chosen by an
// indexer (compressed sparse attention, small m), or do not and are all read (heavily compressed attention, large m).
// The rotation of the values is undone in the output, which groups of heads project to a few channels.
//
// Parameters, by Hugging Face's names; sizes of CompressedSpec, D the residual stream's width:
//   q_a_proj [Q, D], q_a_norm [Q], q_b_proj [N d, Q], kv_proj [d, D], kv_norm [d], sinks [N],
//   o_a_proj.weight [g r, N d / g] (block-diagonal), o_b_proj [D, g r],
//   compressor: kv_proj, gate_proj [w d, D], position_bias [m, w d] (float32 in 16-bit models), kv_norm [d],
//   indexer: q_b_proj [H d_i, Q], weights_proj [H, D], and another compressor with d_i channels; it is not trained
#pragma once

#include <memory>
#include <optional>

#include "witan/nn/compressed_attention/compressed_spec.h"
#include "witan/nn/linear.h"
#include "witan/nn/mixer/token_mixer.h"
#include "witan/ops/attention/compressed_attention.h"

namespace witan {

// Generation keeps this for one compressor: its entries, and the values and gates of the last tokens.
struct EntryCache {
  Tensor entries;             // [R, E, d]
  kernels::EntryTails tails;  // [R, 2 m, w d]
};

class CompressedState : public SequenceState {
 public:
  CompressedState(Stream& stream, const StateSize& size, const CompressedSpec& spec, DType dtype);

  int64_t bytes() const override;
  // Tokens of entries that are not complete are gone.
  int64_t resumable(int64_t wanted, int64_t held, int64_t /*reach*/) const override {
    return wanted == held ? wanted : 0;
  }
  void copy_row(Stream& stream, int64_t from, int64_t to) override;

  const int64_t limit;                         // positions
  const Tensor keys;                           // [R, C, 1, d]
  std::optional<EntryCache> entries, indexed;  // of the layer, and of its indexer
};

// Makes entries of tokens: projections to values and gates, their weighted means, a norm and rotary positions.
class Compressor : public Module {
 public:
  // channels: d   values: w d
  Compressor(const Builder& builder, const MixerModel& model, int64_t ratio, int64_t channels, int64_t values,
             const kernels::RopeArgs& rope);

  Var forward(Tape& tape, const Var& x, const ops::CompressedPlaces& places);  // [B, S, D] -> [B, E, d]
  // Extends the cache by a generation step's tokens, x [1, T, D].
  void extend(Tape& tape, const Var& x, const EntryCache& cache, const kernels::SequencePlaces& places);

 private:
  Var finished(Tape& tape, const Var& entries, const Tensor& turns);  // normed and rotated

  int64_t ratio_, channels_;
  bool overlap_;
  kernels::RopeArgs rope_;
  Linear kv_proj_, gate_proj_;
  Norm kv_norm_;
  Parameter* position_bias_;
};

// Chooses the entries that tokens attend to.
class EntryIndexer : public Module {
 public:
  EntryIndexer(const Builder& builder, const CompressedSpec& spec, const MixerModel& model);

  // latent [B, S, Q] of queries -> [B S, K]
  Tensor choose(Stream& stream, const Var& x, const Var& latent, const Positions& where,
                const ops::CompressedPlaces& places);
  Tensor choose_in_step(Stream& stream, const Var& x, const Var& latent, const Tensor& positions,
                        const EntryCache& cache, const kernels::SequencePlaces& places);

 private:
  Tensor chosen(Tape& tape, const Var& x, const Var& latent, const Tensor& positions, const Tensor& entries,
                const kernels::SequencePlaces& places);

  CompressedSpec spec_;
  Linear q_b_proj_, weights_proj_;
  Compressor compressor_;
};

class CompressedAttention : public TokenMixer {
 public:
  CompressedAttention(const Builder& builder, const CompressedSpec& spec, const MixerModel& model);

  Var forward(Tape& tape, const Var& x, const Positions& where, const Randomness& randomness = {},
              const Var& embedded = {}) override;
  Var decode(Tape& tape, const Var& x, const Positions& where, SequenceState& state, const Var& embedded = {}) override;
  std::unique_ptr<SequenceState> make_state(Stream& stream, const StateSize& size, DType dtype) const override;

 private:
  struct Heads {
    Var latent, q, keys;  // [B, S, Q], [B, S, N, d], [B, S, d]
  };
  Heads project(Tape& tape, const Var& x, const Tensor& positions, const Randomness& randomness);
  // Turns the rotation of values back, and projects: [B, S, N, d] -> [B, S, D]
  Var output(Tape& tape, const Var& y, const Tensor& positions, const Randomness& randomness);
  ops::CompressedArgs args() const;

  CompressedSpec spec_;
  Linear q_a_proj_, q_b_proj_, kv_proj_;
  Norm q_a_norm_, kv_norm_;
  NormConfig head_norm_;  // of queries, without a weight
  Parameter *o_a_proj_, *sinks_;
  Linear o_b_proj_;
  std::optional<Compressor> compressor_;
  std::optional<EntryIndexer> indexer_;
};

}  // namespace witan
