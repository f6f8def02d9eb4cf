// A task has some tokens of all heads, or some keys or entries.
#include "witan/kernels/attention/compressed_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "witan/kernels/common/cpu/rows.h"

namespace witan::kernels::cpu {
namespace {

// The place of token t.
struct Place {
  Place(const SequencePlaces& of, int64_t t)
      : row(of.rows.data<int32_t>()[t]),
        begin(of.begins.data<int32_t>()[t]),
        position(of.positions.data<int32_t>()[t]) {}

  bool padding() const { return position < 0; }
  int64_t first_entry(int64_t m) const { return (begin + m - 1) / m; }
  int64_t entries(int64_t m) const { return (position + 1) / m; }  // that it sees

  int64_t row, begin, position;
};

template <class A, class T>
A dot(const T* a, const T* b, int64_t d) {
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < d; ++c) sum += A(a[c]) * A(b[c]);
  return sum;
}

template <class A, class T>
void add_scaled(A* to, A factor, const T* from, int64_t d) {
#pragma omp simd
  for (int64_t c = 0; c < d; ++c) to[c] += factor * A(from[c]);
}

template <class T, class A>
void round_to(T* to, const A* from, int64_t d) {
#pragma omp simd
  for (int64_t c = 0; c < d; ++c) store(to[c], from[c]);
}

// Calls body(i) for i < count in tasks of about `work` elements each.
template <class Body>
void for_items(Stream& stream, int64_t count, int64_t work, const Body& body) {
  stream.pool().for_ranges(count, kTaskElements / std::max<int64_t>(work, 1), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i);
  });
}

// A token's part of the 2 m, or m, that make an entry: its values' first channel and its row of the bias.
struct Part {
  int64_t token;   // relative to the entry's first one: from -m on with overlap
  int64_t column;  // where its values begin
  int64_t of_bias;
};
std::vector<Part> parts_of(const EntryInputs& in, bool begins) {
  const int64_t m = in.tokens_of_entry(), d = in.channels();
  std::vector<Part> parts;
  if (in.overlap && !begins)
    for (int64_t j = 0; j < m; ++j) parts.push_back({j - m, 0, j});
  for (int64_t j = 0; j < m; ++j) parts.push_back({j, in.overlap ? d : 0, j});
  return parts;
}

// One entry, whose parts' values and gates kv(part) and gate(part) point to; weights(p, c) if not null get the softmax.
template <class T, class Kv, class Gate>
void make_entry(T* entry, const EntryInputs& in, const std::vector<Part>& parts, const Kv& kv, const Gate& gate,
                std::vector<Accumulator<T>>& weights) {
  using A = Accumulator<T>;
  const int64_t d = in.channels(), wd = in.kv.shape().last();
  weights.resize(parts.size() * static_cast<size_t>(d));
  for (int64_t c = 0; c < d; ++c) {
    A top = -std::numeric_limits<A>::infinity(), sum = 0, mean = 0;
    const auto weight = [&](size_t p) -> A& { return weights[p * static_cast<size_t>(d) + static_cast<size_t>(c)]; };
    for (size_t p = 0; p < parts.size(); ++p) {
      weight(p) = A(gate(parts[p])[c]) + in.bias.data<A>()[parts[p].of_bias * wd + parts[p].column + c];
      top = std::max(top, weight(p));
    }
    for (size_t p = 0; p < parts.size(); ++p) sum += weight(p) = std::exp(weight(p) - top);
    for (size_t p = 0; p < parts.size(); ++p) mean += (weight(p) /= sum) * A(kv(parts[p])[c]);
    entry[c] = T(mean);
  }
}

template <class T>
struct Call {
  using A = Accumulator<T>;
  explicit Call(const CompressedInputs& inputs)
      : in(inputs),
        tokens(in.q.size(0)),
        heads(in.q.size(1)),
        d(in.q.size(2)),
        C(in.keys.size(1)),
        E(in.entries.defined() ? in.entries.size(1) : 0),
        K(in.chosen.defined() ? in.chosen.size(1) : 0) {}

  const T* q(int64_t t, int64_t n) const { return in.q.data<T>() + (t * heads + n) * d; }
  const T* key(const Place& at, int64_t position) const {
    return in.keys.data<T>() + (at.row * C + (at.begin + position) % C) * d;
  }
  const T* entry(const Place& at, int64_t i) const {
    return in.entries.data<T>() + (at.row * E + at.first_entry(in.m) + i) * d;
  }
  int64_t sum_at(const Place& at, int64_t n) const { return (at.row * heads + n) * C + at.begin + at.position; }
  bool chose(int64_t t, int64_t i) const {
    if (K == 0) return true;
    const int32_t* const chosen = in.chosen.data<int32_t>() + t * K;
    const int32_t* const end = std::find(chosen, chosen + K, -1);
    return std::binary_search(chosen, end, static_cast<int32_t>(i));
  }
  // The keys and entries that token t attends to.
  std::vector<const T*> seen(int64_t t, const Place& at) const {
    std::vector<const T*> all;
    for (int64_t p = std::max<int64_t>(at.position - in.window + 1, 0); p <= at.position; ++p)
      all.push_back(key(at, p));
    if (E == 0) return all;
    if (K > 0) {
      const int32_t* const chosen = in.chosen.data<int32_t>() + t * K;
      for (int64_t i = 0; i < K && chosen[i] >= 0; ++i) all.push_back(entry(at, chosen[i]));
    } else {
      for (int64_t i = 0; i < at.entries(in.m); ++i) all.push_back(entry(at, i));
    }
    return all;
  }
  template <class Body>
  void for_tokens(Stream& stream, const Body& body) const {
    for_items(stream, tokens, heads * d * (in.window + std::max(E / 2, K)), [&](int64_t t) {
      const Place at(in.places, t);
      body(t, at, at.padding() ? std::vector<const T*>() : seen(t, at));
    });
  }

  const CompressedInputs& in;
  int64_t tokens, heads, d, C, E, K;
};

}  // namespace

void sequence_places(Stream& /*stream*/, const SequencePlaces& to, const Tensor& ids, int64_t S) {
  const int64_t T = to.rows.elements();
  int32_t begin = 0;
  for (int64_t t = 0; t < T; ++t) {
    const auto at = static_cast<int32_t>(t % S);
    const int32_t* const id = ids.defined() ? ids.data<int32_t>() + t : nullptr;
    if (at == 0 || (id && id[0] != id[-1])) begin = at;
    to.rows.data<int32_t>()[t] = static_cast<int32_t>(t / S);
    to.begins.data<int32_t>()[t] = begin;
    to.positions.data<int32_t>()[t] = id && *id < 0 ? -1 : at - begin;
  }
}

void entry_places(Stream& /*stream*/, const EntryPlaces& to, const SequencePlaces& places,
                  const Tensor& turns_of_tokens, int64_t m) {
  const int64_t E = to.slots.size(1);
  std::fill_n(to.slots.data<int32_t>(), to.slots.elements(), -1);
  for (const Tensor* of : {&to.positions, &to.turns}) std::fill_n(of->data<int32_t>(), of->elements(), 0);
  for (int64_t t = 0; t < places.rows.elements(); ++t) {
    const Place at(places, t);
    if (at.padding() || (at.position + 1) % m != 0) continue;
    const int64_t slot = at.row * E + at.first_entry(m) + at.position / m;
    to.slots.data<int32_t>()[slot] = static_cast<int32_t>(t - m + 1);
    to.positions.data<int32_t>()[slot] = static_cast<int32_t>(at.position - m + 1);
    to.turns.data<int32_t>()[slot] = turns_of_tokens.data<int32_t>()[t - m + 1];
  }
}

void make_entries(Stream& stream, const Tensor& entries, const EntryInputs& in, const EntryPlaces& places) {
  const int64_t d = in.channels(), wd = in.kv.shape().last();
  dispatch_floating(in.kv.dtype(), [&]<class T>() {
    for_items(stream, places.slots.elements(), 2 * wd * in.tokens_of_entry(), [&](int64_t slot) {
      T* const to = entries.data<T>() + slot * d;
      const int64_t first = places.slots.data<int32_t>()[slot];
      if (first < 0) return void(std::fill_n(to, d, T(0.0F)));
      const auto row = [&](const Tensor& of) {
        return [&, first](const Part& part) { return of.data<T>() + (first + part.token) * wd + part.column; };
      };
      std::vector<Accumulator<T>> weights;
      make_entry(to, in, parts_of(in, places.positions.data<int32_t>()[slot] == 0), row(in.kv), row(in.gate), weights);
    });
  });
}

void make_entries_backward(Stream& stream, const EntryGradients& to, const Tensor& dentries, const EntryInputs& in,
                           const SequencePlaces& /*of_tokens*/, const EntryPlaces& places) {
  const int64_t d = in.channels(), wd = in.kv.shape().last(), m = in.tokens_of_entry();
  dispatch_floating(in.kv.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    for (const Tensor* of : {&to.dkv, &to.dgate}) std::fill_n(of->data<T>(), of->elements(), T(0.0F));
    std::fill_n(to.dbias.data<A>(), to.dbias.elements(), A(0));
    // Each pair of a token and a half of its channels belongs to one entry: tasks are columns, since entries share rows
    // of the bias.
    stream.pool().for_ranges(
        d, std::max<int64_t>(kTaskElements / std::max<int64_t>(in.kv.size(0), 1), 1), [&](int64_t begin, int64_t end) {
          for (int64_t slot = 0; slot < places.slots.elements(); ++slot) {
            const int64_t first = places.slots.data<int32_t>()[slot];
            if (first < 0) continue;
            const std::vector<Part> parts = parts_of(in, places.positions.data<int32_t>()[slot] == 0);
            std::vector<A> weights(parts.size());
            for (int64_t c = begin; c < end; ++c) {
              const auto at = [&](size_t p) { return (first + parts[p].token) * wd + parts[p].column + c; };
              const auto of_bias = [&](size_t p) { return parts[p].of_bias * wd + parts[p].column + c; };
              A top = -std::numeric_limits<A>::infinity(), sum = 0, mean = 0;
              for (size_t p = 0; p < parts.size(); ++p)
                top = std::max(top, weights[p] = A(in.gate.data<T>()[at(p)]) + in.bias.data<A>()[of_bias(p)]);
              for (A& weight : weights) sum += weight = std::exp(weight - top);
              for (size_t p = 0; p < parts.size(); ++p) mean += (weights[p] /= sum) * A(in.kv.data<T>()[at(p)]);
              const A g = A(dentries.data<T>()[slot * d + c]);
              for (size_t p = 0; p < parts.size(); ++p) {
                const A dgate = g * weights[p] * (A(in.kv.data<T>()[at(p)]) - mean);
                to.dkv.data<T>()[at(p)] = T(g * weights[p]);
                to.dgate.data<T>()[at(p)] = T(dgate);
                to.dbias.data<A>()[of_bias(p)] += dgate;
              }
            }
          }
        });
    assert(to.dbias.size(0) == m);
  });
}

void make_entries_in_step(Stream& stream, const Tensor& entries, const EntryTails& tails, const EntryInputs& in,
                          const SequencePlaces& places) {
  const int64_t T_ = places.rows.elements(), d = in.channels(), wd = in.kv.shape().last(), m = in.tokens_of_entry();
  dispatch_floating(in.kv.dtype(), [&]<class T>() {
    const auto tail = [&](const Tensor& of, int64_t row, int64_t position) {
      return of.data<T>() + (row * 2 * m + position % (2 * m)) * wd;
    };
    // Whether token t + offset is in the step, of the same sequence and that far from t.
    const auto in_step = [&](int64_t t, int64_t offset) {
      if (t + offset < 0 || t + offset >= T_) return false;
      const Place here(places, t), there(places, t + offset);
      return there.row == here.row && there.position == here.position + offset;
    };
    for_items(stream, T_, 2 * wd * m, [&](int64_t t) {
      const Place at(places, t);
      T* const to = entries.data<T>() + t * d;
      if ((at.position + 1) % m != 0) return void(std::fill_n(to, d, T(0.0F)));
      const auto row = [&](const Tensor& step, const Tensor& before) {
        return [&](const Part& part) {
          const int64_t offset = part.token - m + 1;
          const T* const values =
              in_step(t, offset) ? step.data<T>() + (t + offset) * wd : tail(before, at.row, at.position + offset);
          return values + part.column;
        };
      };
      std::vector<Accumulator<T>> weights;
      make_entry(to, in, parts_of(in, at.position < m), row(in.kv, tails.kv), row(in.gate, tails.gate), weights);
    });
    for_items(stream, T_, 2 * wd, [&](int64_t t) {
      if (in_step(t, 2 * m)) return;  // which has the same slot
      const Place at(places, t);
      std::copy_n(in.kv.data<T>() + t * wd, wd, tail(tails.kv, at.row, at.position));
      std::copy_n(in.gate.data<T>() + t * wd, wd, tail(tails.gate, at.row, at.position));
    });
  });
}

void entry_positions(Stream& /*stream*/, const Tensor& to, const Tensor& positions, int64_t m) {
  for (int64_t t = 0; t < to.elements(); ++t)
    to.data<int32_t>()[t] = static_cast<int32_t>(positions.data<int32_t>()[t] / m * m);
}

void append_entries(Stream& /*stream*/, const Tensor& cache, const Tensor& entries, const SequencePlaces& places,
                    int64_t m) {
  const int64_t d = entries.size(1), E = cache.size(1);
  dispatch_floating(cache.dtype(), [&]<class T>() {
    for (int64_t t = 0; t < entries.size(0); ++t) {
      const Place at(places, t);
      if ((at.position + 1) % m == 0)
        std::copy_n(entries.data<T>() + t * d, d, cache.data<T>() + (at.row * E + at.position / m) * d);
    }
  });
}

void entry_scores(Stream& stream, const Tensor& scores, const Tensor& q, const Tensor& w, const Tensor& k,
                  const SequencePlaces& places, int64_t m, double scale) {
  const int64_t H = q.size(1), d = q.size(2), E = k.size(1), columns = scores.size(1);
  dispatch_floating(q.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    for_items(stream, q.size(0), H * d * E, [&](int64_t t) {
      const Place at(places, t);
      A* const to = scores.data<A>() + t * columns;
      std::fill_n(to, columns, -std::numeric_limits<A>::infinity());
      for (int64_t i = 0; !at.padding() && i < at.entries(m); ++i) {
        const T* const key = k.data<T>() + (at.row * E + at.first_entry(m) + i) * d;
        A sum = 0;
        for (int64_t h = 0; h < H; ++h)
          sum += A(w.data<T>()[t * H + h]) * std::max(dot<A>(q.data<T>() + (t * H + h) * d, key, d), A(0));
        to[i] = A(scale) * sum;
      }
    });
  });
}

void compressed_attention_forward(Stream& stream, const Tensor& y, const Tensor& lse, const CompressedInputs& in) {
  dispatch_floating(in.q.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const Call<T> call(in);
    const int64_t d = call.d;
    call.for_tokens(stream, [&](int64_t t, const Place& at, const std::vector<const T*>& seen) {
      std::vector<A> weights(seen.size()), sums(static_cast<size_t>(d));
      for (int64_t n = 0; n < call.heads; ++n) {
        const A sink = A(in.sinks.data<T>()[n]);
        A top = sink;
        for (size_t i = 0; i < seen.size(); ++i)
          top = std::max(top, weights[i] = A(in.scale) * dot<A>(call.q(t, n), seen[i], d));
        A sum = std::exp(sink - top);
        for (A& weight : weights) sum += weight = std::exp(weight - top);
        std::ranges::fill(sums, A(0));
        for (size_t i = 0; i < seen.size(); ++i) add_scaled(sums.data(), weights[i], seen[i], d);
        for (A& value : sums) value /= sum;
        round_to(y.data<T>() + (t * call.heads + n) * d, sums.data(), d);
        if (lse.defined() && !at.padding()) lse.data<A>()[call.sum_at(at, n)] = top + std::log(sum);
        if (lse.defined() && at.padding()) lse.data<A>()[(at.row * call.heads + n) * call.C + t % call.C] = sink;
      }
    });
  });
}

void compressed_attention_backward(Stream& stream, const CompressedGradients& to, const Tensor& dy, const Tensor& y,
                                   const Tensor& lse, const CompressedInputs& in, const EntryPlaces& entries) {
  dispatch_floating(in.q.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const Call<T> call(in);
    const int64_t d = call.d, N = call.heads;
    A* const delta = to.delta.data<A>();
    const auto of_head = [&](const Tensor& of, int64_t t, int64_t n) { return of.data<T>() + (t * N + n) * d; };
    struct Pair {
      A p, ds;
    };
    const auto pair = [&](int64_t t, const Place& at, int64_t n, const T* key) -> Pair {
      const A p = std::exp(A(in.scale) * dot<A>(call.q(t, n), key, d) - lse.data<A>()[call.sum_at(at, n)]);
      return {p, A(in.scale) * p * (dot<A>(of_head(dy, t, n), key, d) - delta[t * N + n])};
    };
    call.for_tokens(stream, [&](int64_t t, const Place& at, const std::vector<const T*>& seen) {
      std::vector<A> sums(static_cast<size_t>(d));
      for (int64_t n = 0; n < N; ++n) {
        delta[t * N + n] = dot<A>(of_head(dy, t, n), of_head(y, t, n), d);
        std::ranges::fill(sums, A(0));
        for (const T* key : seen) add_scaled(sums.data(), pair(t, at, n, key).ds, key, d);
        round_to(to.dq.data<T>() + (t * N + n) * d, sums.data(), d);
      }
    });
    // A key is also its value: its gradient is that of both.
    const auto add_token = [&](std::vector<A>& sums, int64_t t, const Place& at, const T* key) {
      for (int64_t n = 0; n < N; ++n) {
        const Pair of = pair(t, at, n, key);
        add_scaled(sums.data(), of.ds, call.q(t, n), d);
        add_scaled(sums.data(), of.p, of_head(dy, t, n), d);
      }
    };
    const auto same_sequence = [&](int64_t a, int64_t b) {
      if (b >= call.tokens) return false;
      const Place first(in.places, a), second(in.places, b);
      return first.row == second.row && first.begin == second.begin && !second.padding();
    };
    for_items(stream, call.tokens, N * d * in.window, [&](int64_t j) {
      std::vector<A> sums(static_cast<size_t>(d));
      const T* const key = in.keys.data<T>() + j * d;
      for (int64_t t = j; t < j + in.window && same_sequence(j, t); ++t) add_token(sums, t, Place(in.places, t), key);
      round_to(to.dkeys.data<T>() + j * d, sums.data(), d);
    });
    if (!to.dentries.defined()) return;
    for_items(stream, entries.slots.elements(), N * d * call.C / 2, [&](int64_t slot) {
      std::vector<A> sums(static_cast<size_t>(d));
      const int64_t first = entries.slots.data<int32_t>()[slot];
      const T* const entry = in.entries.data<T>() + slot * d;
      if (first >= 0) {
        const int64_t number = entries.positions.data<int32_t>()[slot] / in.m;
        for (int64_t t = first + in.m - 1; same_sequence(first, t); ++t)
          if (call.chose(t, number)) add_token(sums, t, Place(in.places, t), entry);
      }
      round_to(to.dentries.data<T>() + slot * d, sums.data(), d);
    });
  });
}

}  // namespace witan::kernels::cpu
