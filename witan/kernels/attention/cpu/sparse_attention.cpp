// Attention to chosen keys. A task has some tokens of all heads, or some keys.
#include "witan/kernels/attention/sparse_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "witan/kernels/attention/cpu/seen_slots.h"
#include "witan/kernels/common/cpu/rows.h"

namespace witan::kernels::cpu {
namespace {

template <class A, class T>
A head_dot(const T* a, const T* b, int64_t d) {
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < d; ++c) sum += A(a[c]) * A(b[c]);
  return sum;
}

template <class T>
struct SparseCall {
  using A = Accumulator<T>;
  explicit SparseCall(const SparseInputs& inputs)
      : in(inputs),
        tokens(in.q.size(0)),
        heads(in.q.size(1)),
        hd(in.q.size(2)),
        hd_v(in.v.defined() ? in.v.size(3) : 0),
        C(in.where.slots),
        K(in.chosen.defined() ? in.chosen.size(1) : 0) {}

  const T* q(int64_t t, int64_t n) const { return in.q.data<T>() + (t * heads + n) * hd; }
  const T* k(int64_t row, int64_t j, int64_t n) const { return in.k.data<T>() + ((row * C + j) * heads + n) * hd; }
  const T* v(int64_t row, int64_t j, int64_t n) const { return in.v.data<T>() + ((row * C + j) * heads + n) * hd_v; }
  A score(int64_t t, int64_t row, int64_t j, int64_t n) const {
    return A(in.scale) * head_dot<A>(q(t, n), k(row, j, n), hd);
  }
  int64_t sum_at(const SeenSlots& seen, int64_t n) const { return (seen.row * heads + n) * C + seen.last; }  // in lse
  // The slots that token t attends to, in ascending order.
  void slots_of(int64_t t, const SeenSlots& seen, std::vector<int64_t>& slots) const {
    slots.clear();
    if (!in.chosen.defined()) {
      for (int64_t j = 0; j <= seen.last; ++j)
        if (seen.sees(j)) slots.push_back(j);
      return;
    }
    const int32_t* const chosen = in.chosen.data<int32_t>() + t * K;
    for (int64_t m = 0; m < K && chosen[m] >= 0; ++m) slots.push_back(chosen[m]);
  }
  // Calls body(t, seen, slots) for each token, in tasks.
  template <class Body>
  void for_tokens(Stream& stream, const Body& body) const {
    const int64_t work = heads * hd * (in.chosen.defined() ? K : C);
    stream.pool().for_ranges(tokens, kTaskElements / work, [&](int64_t begin, int64_t end) {
      std::vector<int64_t> slots;
      for (int64_t t = begin; t < end; ++t) {
        const SeenSlots seen(in.where, t);
        slots_of(t, seen, slots);
        body(t, seen, slots);
      }
    });
  }

  const SparseInputs& in;
  int64_t tokens, heads, hd, hd_v, C, K;
};

}  // namespace

void sparse_attention_forward(Stream& stream, const Tensor& y, const Tensor& lse, const SparseInputs& in,
                              const SparseMemory&) {
  dispatch_floating(in.q.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const SparseCall<T> call(in);
    call.for_tokens(stream, [&](int64_t t, const SeenSlots& seen, const std::vector<int64_t>& slots) {
      std::vector<A> weights(slots.size()), sums(static_cast<size_t>(call.hd_v));
      for (int64_t n = 0; n < call.heads; ++n) {
        A top = -std::numeric_limits<A>::infinity(), sum = 0;
        for (size_t m = 0; m < slots.size(); ++m)
          top = std::max(top, weights[m] = call.score(t, seen.row, slots[m], n));
        for (A& weight : weights) sum += weight = std::exp(weight - top);
        std::ranges::fill(sums, A(0));
        for (size_t m = 0; m < slots.size(); ++m) {
          const T* v = call.v(seen.row, slots[m], n);
          for (int64_t c = 0; c < call.hd_v; ++c) sums[static_cast<size_t>(c)] += weights[m] * A(v[c]);
        }
        T* to = y.data<T>() + (t * call.heads + n) * call.hd_v;
        for (int64_t c = 0; c < call.hd_v; ++c) to[c] = T(sums[static_cast<size_t>(c)] / sum);
        if (lse.defined()) lse.data<A>()[call.sum_at(seen, n)] = top + std::log(sum);
      }
    });
  });
}

// Counts, then begins, then tokens in their order: one pass over the choices each.
void choosers_of_keys(Stream& /*stream*/, const ChoosersOfKeys& to, const Tensor& chosen, const KeyRows& where) {
  const int64_t K = chosen.size(1), slots = where.rows * where.slots;
  int64_t* const begin = to.begin.data<int64_t>();
  const auto for_choices = [&](const auto& body) {
    for (int64_t t = 0; t < chosen.size(0); ++t) {
      const int32_t* const of = chosen.data<int32_t>() + t * K;
      const int64_t row = SeenSlots(where, t).row;
      for (int64_t m = 0; m < K && of[m] >= 0; ++m) body(t, row * where.slots + of[m]);
    }
  };
  std::fill_n(begin, slots + 1, 0);
  for_choices([&](int64_t, int64_t slot) { ++begin[slot + 1]; });
  for (int64_t slot = 0; slot < slots; ++slot) begin[slot + 1] += begin[slot];
  std::vector<int64_t> next(begin, begin + slots);
  for_choices([&](int64_t t, int64_t slot) {
    to.tokens.data<int32_t>()[next[static_cast<size_t>(slot)]++] = static_cast<int32_t>(t);
  });
}

void sparse_attention_backward(Stream& stream, const SparseGradients& to, const Tensor& dy, const Tensor& y,
                               const Tensor& lse, const SparseInputs& in, const ChoosersOfKeys& choosers) {
  dispatch_floating(in.q.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const SparseCall<T> call(in);
    const int64_t N = call.heads, hd = call.hd, hd_v = call.hd_v, C = call.C;
    const auto dy_of = [&](int64_t t, int64_t n) { return dy.data<T>() + (t * N + n) * hd_v; };
    const auto probability = [&](int64_t t, int64_t row, int64_t j, int64_t n) {
      return std::exp(call.score(t, row, j, n) - lse.data<A>()[call.sum_at(SeenSlots(in.where, t), n)]);
    };
    call.for_tokens(stream, [&](int64_t t, const SeenSlots& seen, const std::vector<int64_t>& slots) {
      std::vector<A> dq(static_cast<size_t>(hd));
      for (int64_t n = 0; n < N; ++n) {
        const A delta = to.delta.data<A>()[t * N + n] =
            head_dot<A>(dy_of(t, n), y.data<T>() + (t * N + n) * hd_v, hd_v);
        std::ranges::fill(dq, A(0));
        for (const int64_t j : slots) {
          const T* k = call.k(seen.row, j, n);
          const A ds = probability(t, seen.row, j, n) *
                       (head_dot<A>(dy_of(t, n), call.v(seen.row, j, n), hd_v) - delta) * A(in.scale);
          for (int64_t c = 0; c < hd; ++c) dq[static_cast<size_t>(c)] += ds * A(k[c]);
        }
        T* out = to.dq.data<T>() + (t * N + n) * hd;
        for (int64_t c = 0; c < hd; ++c) out[c] = T(dq[static_cast<size_t>(c)]);
      }
    });
    const int64_t* const begin = choosers.begin.data<int64_t>();
    stream.pool().for_ranges(in.where.rows * C, kTaskElements / (N * hd * call.K), [&](int64_t first, int64_t end) {
      std::vector<A> dk(static_cast<size_t>(hd)), dv(static_cast<size_t>(hd_v));
      for (int64_t slot = first; slot < end; ++slot)
        for (int64_t n = 0; n < N; ++n) {
          const int64_t row = slot / C, j = slot % C;
          std::ranges::fill(dk, A(0));
          std::ranges::fill(dv, A(0));
          for (int64_t i = begin[slot]; i < begin[slot + 1]; ++i) {
            const int64_t t = choosers.tokens.data<int32_t>()[i];
            const T *q = call.q(t, n), *g = dy_of(t, n);
            const A p = probability(t, row, j, n);
            const A ds = p * (head_dot<A>(g, call.v(row, j, n), hd_v) - to.delta.data<A>()[t * N + n]) * A(in.scale);
            for (int64_t c = 0; c < hd; ++c) dk[static_cast<size_t>(c)] += ds * A(q[c]);
            for (int64_t c = 0; c < hd_v; ++c) dv[static_cast<size_t>(c)] += p * A(g[c]);
          }
          for (int64_t c = 0; c < hd; ++c) to.dk.data<T>()[(slot * N + n) * hd + c] = T(dk[static_cast<size_t>(c)]);
          for (int64_t c = 0; c < hd_v; ++c) to.dv.data<T>()[(slot * N + n) * hd_v + c] = T(dv[static_cast<size_t>(c)]);
        }
    });
  });
}

void attention_distribution(Stream& stream, const Tensor& p, const Tensor& lse, const SparseInputs& in, int64_t heads) {
  dispatch_floating(in.q.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const SparseCall<T> call(in);
    call.for_tokens(stream, [&](int64_t t, const SeenSlots& seen, const std::vector<int64_t>& slots) {
      A* to = p.data<A>() + t * call.C;
      std::fill_n(to, call.C, A(0));
      for (const int64_t j : slots) {
        A sum = 0;
        for (int64_t n = 0; n < call.heads; ++n)
          sum += std::exp(call.score(t, seen.row, j, n) - lse.data<A>()[call.sum_at(seen, n)]);
        to[j] = sum / A(heads);
      }
    });
  });
}

}  // namespace witan::kernels::cpu
