#include "witan/ops/attention/compressed_attention.h"

#include <algorithm>
#include <optional>

#include "witan/kernels/attention/attention.h"
#include "witan/kernels/attention/sparse_attention.h"
#include "witan/ops/attention/sparse_attention.h"

namespace witan::ops {
namespace {

kernels::SequencePlaces part_of(const kernels::SequencePlaces& places, int64_t first, int64_t count) {
  return {places.rows.narrow(0, first, count), places.begins.narrow(0, first, count),
          places.positions.narrow(0, first, count)};
}

struct SavedPlaces {
  Saved rows, begins, positions, slots, entry_positions;

  SavedPlaces(Tape& tape, const CompressedPlaces& places)
      : rows(tape.save(places.tokens.rows)),
        begins(tape.save(places.tokens.begins)),
        positions(tape.save(places.tokens.positions)) {
    if (!places.entries.slots.defined()) return;
    slots = tape.save(places.entries.slots);
    entry_positions = tape.save(places.entries.positions);
  }
  CompressedPlaces in(Backward& b, bool entries) const {
    CompressedPlaces places{{b.value(rows), b.value(begins), b.value(positions)}, {}};
    if (entries) places.entries = {b.value(slots), b.value(entry_positions), {}};
    return places;
  }
};

void check_entries(const Var& kv, const Var& gate, const Var& bias, bool overlap, const CompressedPlaces& places) {
  require<ShapeError>(
      kv.shape().dims() == 3 && is_floating(kv.dtype()) && gate.shape() == kv.shape() && gate.dtype() == kv.dtype(),
      "make_entries: kv and gate must be [B, S, w d] and alike, got ", kv.dtype(), " ", kv.shape(), " and ",
      gate.dtype(), " ", gate.shape());
  const int64_t wd = kv.size(2);
  require<ShapeError>(!overlap || wd % 2 == 0, "make_entries: ", wd, " channels are not two halves");
  require<ShapeError>(
      bias.shape().dims() == 2 && bias.size(0) >= 1 && bias.size(1) == wd && bias.dtype() == accumulator(kv.dtype()),
      "make_entries: bias must be ", accumulator(kv.dtype()), " [m, ", wd, "], got ", bias.dtype(), " ", bias.shape());
  require<ShapeError>(
      places.entries.slots.defined() &&
          places.entries.slots.shape() == Shape({kv.size(0), kernels::entry_slots(kv.size(1), bias.size(0))}),
      "make_entries: places must be those of entries of ", bias.size(0), " tokens");
}

}  // namespace

CompressedPlaces compressed_places(Stream& stream, const Tensor& positions, const Tensor& ids, int64_t m) {
  const int64_t B = positions.size(0), S = positions.size(1);
  const auto tokens = [&] { return stream.empty({B * S}, DType::i32); };
  CompressedPlaces places{{tokens(), tokens(), tokens()}, {}};
  kernels::sequence_places(stream, places.tokens, ids, S);
  if (m == 0) return places;
  const Shape shape{B, kernels::entry_slots(S, m)};
  places.entries = {stream.empty(shape, DType::i32), stream.empty(shape, DType::i32), stream.empty(shape, DType::i32)};
  kernels::entry_places(stream, places.entries, places.tokens, positions, m);
  return places;
}

Var make_entries(Tape& tape, const Var& kv, const Var& gate, const Var& bias, bool overlap,
                 const CompressedPlaces& places) {
  check_entries(kv, gate, bias, overlap, places);
  Stream& s = tape.stream();
  const int64_t d = kv.size(2) / (overlap ? 2 : 1);
  const Tensor entries = s.empty({kv.size(0), places.entries.slots.size(1), d}, kv.dtype());
  kernels::make_entries(s, entries, {kv.value(), gate.value(), bias.value(), overlap}, places.entries);
  return tape.record(
      "make_entries", entries, {kv, gate, bias},
      [kv = tape.save(kv), gate = tape.save(gate), bias = tape.save(bias), overlap, saved = SavedPlaces(tape, places)](
          Backward& b, const Tensor& dentries) {
        Stream& on = b.stream();
        const kernels::EntryInputs in{b.value(kv), b.value(gate), b.value(bias), overlap};
        const kernels::EntryGradients to{on.empty_like(in.kv), on.empty_like(in.gate), on.empty_like(in.bias)};
        const CompressedPlaces at = saved.in(b, true);
        kernels::make_entries_backward(on, to, dentries, in, at.tokens, at.entries);
        b.add(kv, to.dkv);
        b.add(gate, to.dgate);
        b.add(bias, to.dbias);
      });
}

// Scores exist of some tokens at a time.
Tensor choose_entries(Stream& stream, const Tensor& q, const Tensor& w, const Tensor& k,
                      const kernels::SequencePlaces& places, int64_t m, double scale, int64_t topk) {
  const int64_t T = q.size(0), E = k.size(1);
  const Tensor chosen = stream.empty({T, std::min(topk, E)}, DType::i32);
  const int64_t each = std::clamp<int64_t>(kMostIndexScores / std::max<int64_t>(E, 1), 1, std::max<int64_t>(T, 1));
  for (int64_t first = 0; first < T; first += each) {
    const int64_t count = std::min(each, T - first);
    const Tensor scores = stream.empty({count, E}, accumulator(q.dtype()), MemoryTag::workspace);
    kernels::entry_scores(stream, scores, q.narrow(0, first, count), w.narrow(0, first, count), k,
                          part_of(places, first, count), m, scale);
    kernels::choose_keys(stream, chosen.narrow(0, first, count), scores);
  }
  return chosen;
}

Var compressed_attention(Tape& tape, const Var& q, const Var& keys, const Var& sinks, const Var& entries,
                         const Tensor& chosen, const CompressedPlaces& places, const CompressedArgs& args) {
  require<ShapeError>(q.shape().dims() == 4 && is_floating(q.dtype()),
                      "compressed_attention: q must be [B, S, N, d], got ", q.dtype(), " ", q.shape());
  const int64_t B = q.size(0), S = q.size(1), N = q.size(2), d = q.size(3);
  require<ShapeError>(keys.shape() == Shape({B, S, d}) && keys.dtype() == q.dtype(),
                      "compressed_attention: keys must be ", q.dtype(), " ", Shape({B, S, d}), ", got ", keys.dtype(),
                      " ", keys.shape());
  require<ShapeError>(sinks.shape() == Shape{N} && sinks.dtype() == q.dtype(), "compressed_attention: sinks must be ",
                      q.dtype(), " [", N, "], got ", sinks.dtype(), " ", sinks.shape());
  require<ShapeError>(
      !entries.defined() || (entries.shape().dims() == 3 && entries.size(0) == B && entries.size(2) == d &&
                             entries.dtype() == q.dtype() && places.entries.slots.defined()),
      "compressed_attention: entries must be [", B, ", E, ", d, "], with their places");
  Stream& s = tape.stream();
  const Tensor y = s.empty_like(q.value()), lse = s.empty({B, N, S}, accumulator(q.dtype()));
  const auto inputs = [=](const Tensor& q_, const Tensor& keys_, const Tensor& sinks_, const Tensor& entries_,
                          const Tensor& chosen_, const kernels::SequencePlaces& at) {
    return kernels::CompressedInputs{
        q_.reshape({B * S, N, d}), keys_, sinks_, entries_, chosen_, at, args.window, args.m, args.scale};
  };
  kernels::compressed_attention_forward(s, y.reshape({B * S, N, d}), lse,
                                        inputs(q.value(), keys.value(), sinks.value(),
                                               entries.defined() ? entries.value() : Tensor(), chosen, places.tokens));
  std::vector<Var> in = {q, keys, sinks};
  std::optional<Saved> kept, choice;
  if (entries.defined()) in.push_back(entries), kept = tape.save(entries);
  if (chosen.defined()) choice = tape.save(chosen);
  return tape.record(
      "compressed_attention", y, in,
      [inputs, q = tape.save(q), keys = tape.save(keys), sinks = tape.save(sinks), kept, choice, y = tape.save(y),
       lse = tape.save(lse), saved = SavedPlaces(tape, places), B, S, N, d](Backward& b, const Tensor& dy) {
        Stream& on = b.stream();
        const CompressedPlaces at = saved.in(b, kept.has_value());
        const Tensor k = b.value(keys), e = kept ? b.value(*kept) : Tensor(), out = b.value(y), sums = b.value(lse);
        const kernels::CompressedInputs from =
            inputs(b.value(q), k, b.value(sinks), e, choice ? b.value(*choice) : Tensor(), at.tokens);
        const Tensor dq = on.empty_like(dy), dkeys = on.empty_like(k), dentries = kept ? on.empty_like(e) : Tensor();
        const Tensor delta = on.empty({B * S, N}, sums.dtype(), MemoryTag::workspace);
        kernels::compressed_attention_backward(on, {dq.reshape({B * S, N, d}), dkeys, dentries, delta},
                                               dy.reshape({B * S, N, d}), out.reshape({B * S, N, d}), sums, from,
                                               at.entries);
        b.write(sinks, [&](const Tensor& to, Write how) {
          kernels::attention_sinks_backward(on, to, how, dy, out, sums, b.value(sinks));
        });
        b.add(q, dq);
        b.add(keys, dkeys);
        if (kept) b.add(*kept, dentries);
      });
}

}  // namespace witan::ops
