// Compressed attention of DeepSeek-V4 (2026): beside the keys of a window, a token attends to entries, each of which is
// made of a window of m tokens. A key is its own value, and all heads share it.
//
// Sequences lie in R rows of C slots: the rows of a batch (C = S), or of generation's caches. d channels, N heads. All
// tensors are contiguous. Sums are in float32 or wider, in an order that a token's own sequence alone decides, so that
// neither other sequences nor the place of a document in its row change a bit.
#pragma once

#include "witan/kernels/attention/kv_cache.h"
#include "witan/kernels/common/launch.h"

namespace witan::kernels {

// The tokens [T] int32 of a micro-batch, or of a generation step: their rows, the slots at which their sequences begin,
// and their positions in these. Padding has position -1: it attends to nothing, and its results are 0.
struct SequencePlaces {
  Tensor rows, begins, positions;
};

// The places of a batch's tokens: ids [B, S] int32 of documents, negative for padding; undefined: a row is one document
void sequence_places(Stream& stream, const SequencePlaces& to, const Tensor& ids, int64_t S);
WITAN_KERNEL_TWINS(sequence_places)

// Entries of m tokens lie in rows of E slots. Entry i of a sequence is made of its tokens at positions i m .. i m + m -
// 1, and lies behind those of the sequences before it in the row, at slot ceil(begin / m) + i. A token at position p
// sees the entries i < (p + 1) / m.
constexpr int64_t entry_slots(int64_t S, int64_t m) {
  return (S + m - 1) / m;
}

// The entries of a batch: slots[s] is the token, numbered in the batch's B S, with which the entry at slot s of B E
// begins, positions[s] its position in its sequence, and turns[s] that by which it rotates, turns_of_tokens [B, S] of
// the token; -1, 0 and 0 where there is no entry. [B, E] int32 each
struct EntryPlaces {
  Tensor slots, positions, turns;
};
void entry_places(Stream& stream, const EntryPlaces& to, const SequencePlaces& places, const Tensor& turns_of_tokens,
                  int64_t m);
WITAN_KERNEL_TWINS(entry_places)

// Channel c of an entry is a mean of its tokens' values, weighted by the softmax over tokens
// of gate + bias. With overlap tokens have two values and gates, side by side: the second for their own entry, and the
// first for the next one, which is thus made of 2 m tokens.
// kv, gate [T, w d] of one floating dtype, w = 2 with overlap and 1 without   bias [m, w d] accumulator dtype
struct EntryInputs {
  Tensor kv, gate, bias;
  bool overlap = false;

  int64_t channels() const { return kv.shape().last() / (overlap ? 2 : 1); }
  int64_t tokens_of_entry() const { return bias.size(0); }
};

// entries[s,:] of a batch [B E, d] of kv's dtype; 0 where there is no entry
void make_entries(Stream& stream, const Tensor& entries, const EntryInputs& in, const EntryPlaces& places);
WITAN_KERNEL_TWINS(make_entries)

// dkv, dgate [T, w d] of kv's dtype, overwritten   dbias [m, w d] accumulator dtype, overwritten
struct EntryGradients {
  Tensor dkv, dgate, dbias;
};
void make_entries_backward(Stream& stream, const EntryGradients& to, const Tensor& dentries, const EntryInputs& in,
                           const SequencePlaces& of_tokens, const EntryPlaces& places);
WITAN_KERNEL_TWINS(make_entries_backward)

// Values and gates of the last 2 m tokens of sequences, at slot position mod 2 m.  [R, 2 m, w d] each
struct EntryTails {
  Tensor kv, gate;
};
// Makes the entries that tokens of a generation step complete: entries[t,:] [T, d], 0 for tokens that complete none.
// Tokens that are not in the step are read from the tails; then the step's last tokens are stored there.
void make_entries_in_step(Stream& stream, const Tensor& entries, const EntryTails& tails, const EntryInputs& in,
                          const SequencePlaces& places);
WITAN_KERNEL_TWINS(make_entries_in_step)

// to[t] = the position of the first token of the entry that holds positions[t].  [T] int32
void entry_positions(Stream& stream, const Tensor& to, const Tensor& positions, int64_t m);
WITAN_KERNEL_TWINS(entry_positions)

// cache[rows[t], positions[t] / m, :] = entries[t,:] for tokens that complete an entry.  cache [R, E, d]
void append_entries(Stream& stream, const Tensor& cache, const Tensor& entries, const SequencePlaces& places,
                    int64_t m);
WITAN_KERNEL_TWINS(append_entries)

// scores[t,i] = scale sum_h w[t,h] max(q[t,h,:] . k[entry i of t's sequence,:], 0), or -infinity for entries that token
// t does not see.  scores [T, E] accumulator dtype   q [T, H, d], w [T, H], k [R, E, d]
void entry_scores(Stream& stream, const Tensor& scores, const Tensor& q, const Tensor& w, const Tensor& k,
                  const SequencePlaces& places, int64_t m, double scale);
WITAN_KERNEL_TWINS(entry_scores)

struct CompressedInputs {
  Tensor q, keys;                    // [T, N, d], [R, C, d]: key of position p of a sequence at slot (begin + p) mod C
  Tensor sinks;                      // [N] of q's dtype: logits of a key without a value
  Tensor entries = {}, chosen = {};  // [R, E, d]; [T, K] int32: the numbers of entries that a token attends to,
                                     // ascending, with -1 at the end; undefined: all that it sees
  SequencePlaces places = {};
  int64_t window = 0;  // positions that a token sees, its own included
  int64_t m = 1;
  double scale = 1;
};

// y[t,n,:] = the mean of the window's keys and of the entries, weighted by the softmax of scale q . key and of the
// head's sink.  y [T, N, d]   lse [R, N, C] accumulator dtype, as attention_forward's (attention.h): the logarithm of
// the sum of exponentials, the sink's included; undefined in generation
void compressed_attention_forward(Stream& stream, const Tensor& y, const Tensor& lse, const CompressedInputs& in);
WITAN_KERNEL_TWINS(compressed_attention_forward)

// The gradients in training, where token t has slot t of the batch's R C. dq, dkeys, dentries of the inputs' shapes and
// dtype; overwritten. attention_sinks_backward() (attention.h) makes that of sinks.
// delta [T, N] accumulator dtype: a workspace, which becomes dy . y
struct CompressedGradients {
  Tensor dq, dkeys, dentries, delta;
};
void compressed_attention_backward(Stream& stream, const CompressedGradients& to, const Tensor& dy, const Tensor& y,
                                   const Tensor& lse, const CompressedInputs& in, const EntryPlaces& entries);
WITAN_KERNEL_TWINS(compressed_attention_backward)

}  // namespace witan::kernels
