// Compressed attention of DeepSeek-V4; mathematics in kernels/attention/compressed_attention.h. Throws ShapeError.
#pragma once

#include "witan/autograd/tape.h"
#include "witan/kernels/attention/compressed_attention.h"

namespace witan::ops {

// The places of a batch's tokens and of its entries.
struct CompressedPlaces {
  kernels::SequencePlaces tokens;
  kernels::EntryPlaces entries;
};
// positions [B, S] int32, by which tokens rotate   ids [B, S] int32 of documents, negative for padding; undefined: each
// row is one   m: tokens of an entry; 0: there are no entries
CompressedPlaces compressed_places(Stream& stream, const Tensor& positions, const Tensor& ids, int64_t m);

// kv, gate [B, S, w d], bias [m, w d] in the accumulator dtype -> entries [B, E, d]
Var make_entries(Tape& tape, const Var& kv, const Var& gate, const Var& bias, bool overlap,
                 const CompressedPlaces& places);

// The K = min(topk, entries) entries of its sequence that each token attends to: q [T, H, d], w [T, H], k [R, E, d] ->
// [T, K] int32, ascending, with -1 at the end.
Tensor choose_entries(Stream& stream, const Tensor& q, const Tensor& w, const Tensor& k,
                      const kernels::SequencePlaces& places, int64_t m, double scale, int64_t topk);

struct CompressedArgs {
  int64_t window = 0, m = 1;
  double scale = 1;
};
// q [B, S, N, d], keys [B, S, d], sinks [N], entries [B, E, d] or undefined, chosen [B S, K] or undefined: all ->
// [B, S, N, d]
Var compressed_attention(Tape& tape, const Var& q, const Var& keys, const Var& sinks, const Var& entries,
                         const Tensor& chosen, const CompressedPlaces& places, const CompressedArgs& args);

}  // namespace witan::ops
