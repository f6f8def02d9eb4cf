// Costs of compressed attention. How many entries a token sees depends on its position: half of them is charged.
#include <algorithm>

#include "witan/kernels/attention/compressed_attention.h"

namespace witan::kernels {
namespace {

double numbers_in(const Tensor& tensor) {
  return tensor.defined() ? static_cast<double>(tensor.elements()) : 0;
}

// Keys and entries that a token attends to.
double attended(const CompressedInputs& in) {
  const auto window = static_cast<double>(std::min(in.window, in.keys.size(1)));
  if (in.chosen.defined()) return window + static_cast<double>(in.chosen.size(1));
  return window + (in.entries.defined() ? static_cast<double>(in.entries.size(1)) / 2 : 0);
}

}  // namespace

void sequence_places(Stream& stream, const SequencePlaces& to, const Tensor& ids, int64_t S) {
  WITAN_LAUNCH(stream, sequence_places, (Cost{0, bytes_of(to.rows, to.begins, to.positions, ids)}), to, ids, S);
}

void entry_places(Stream& stream, const EntryPlaces& to, const SequencePlaces& places, const Tensor& turns_of_tokens,
                  int64_t m) {
  WITAN_LAUNCH(stream, entry_places, (Cost{0, bytes_of(to.slots, to.positions, places.begins, places.positions)}), to,
               places, turns_of_tokens, m);
}

void make_entries(Stream& stream, const Tensor& entries, const EntryInputs& in, const EntryPlaces& places) {
  WITAN_LAUNCH(stream, make_entries, (Cost{6 * numbers_in(in.kv), bytes_of(entries, in.kv, in.gate, in.bias)}), entries,
               in, places);
}

void make_entries_backward(Stream& stream, const EntryGradients& to, const Tensor& dentries, const EntryInputs& in,
                           const SequencePlaces& of_tokens, const EntryPlaces& places) {
  const Cost cost{16 * numbers_in(in.kv), bytes_of(to.dkv, to.dgate, to.dbias, dentries, in.kv, in.gate, in.bias)};
  WITAN_LAUNCH(stream, make_entries_backward, cost, to, dentries, in, of_tokens, places);
}

void make_entries_in_step(Stream& stream, const Tensor& entries, const EntryTails& tails, const EntryInputs& in,
                          const SequencePlaces& places) {
  WITAN_LAUNCH(stream, make_entries_in_step, (Cost{6 * numbers_in(in.kv), 2 * bytes_of(entries, in.kv, in.gate)}),
               entries, tails, in, places);
}

void entry_positions(Stream& stream, const Tensor& to, const Tensor& positions, int64_t m) {
  WITAN_LAUNCH(stream, entry_positions, (Cost{0, bytes_of(to, positions)}), to, positions, m);
}

void append_entries(Stream& stream, const Tensor& cache, const Tensor& entries, const SequencePlaces& places,
                    int64_t m) {
  WITAN_LAUNCH(stream, append_entries, (Cost{0, 2 * bytes_of(entries) / static_cast<double>(m)}), cache, entries,
               places, m);
}

void entry_scores(Stream& stream, const Tensor& scores, const Tensor& q, const Tensor& w, const Tensor& k,
                  const SequencePlaces& places, int64_t m, double scale) {
  const Cost cost{numbers_in(scores) * static_cast<double>(q.size(1)) * static_cast<double>(q.size(2)),
                  bytes_of(scores, q, w, k)};
  WITAN_LAUNCH(stream, entry_scores, cost, scores, q, w, k, places, m, scale);
}

void compressed_attention_forward(Stream& stream, const Tensor& y, const Tensor& lse, const CompressedInputs& in) {
  const Cost cost{4 * numbers_in(in.q) * attended(in), bytes_of(y, lse, in.q, in.keys, in.entries, in.chosen)};
  WITAN_LAUNCH(stream, compressed_attention_forward, cost, y, lse, in);
}

void compressed_attention_backward(Stream& stream, const CompressedGradients& to, const Tensor& dy, const Tensor& y,
                                   const Tensor& lse, const CompressedInputs& in, const EntryPlaces& entries) {
  const Cost cost{14 * numbers_in(in.q) * attended(in),
                  bytes_of(to.dq, to.dkeys, to.dentries, dy, y, lse, in.q, in.keys, in.entries, in.chosen)};
  WITAN_LAUNCH(stream, compressed_attention_backward, cost, to, dy, y, lse, in, entries);
}

}  // namespace witan::kernels
