// The lightning indexer: scores, the choice of keys, and the divergence from attention. A task has some tokens, or some
// keys.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "witan/kernels/attention/cpu/seen_slots.h"
#include "witan/kernels/attention/sparse_attention.h"
#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/common/cpu/weights.h"

namespace witan::kernels::cpu {
namespace {

template <class A, class T>
A index_dot(const T* a, const T* b, int64_t d) {
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < d; ++c) sum += A(a[c]) * A(b[c]);
  return sum;
}

struct IndexSizes {
  explicit IndexSizes(const IndexInputs& in) : tokens(in.q.size(0)), heads(in.q.size(1)), d(in.q.size(2)) {}
  int64_t tokens, heads, d;
};

}  // namespace

void index_scores(Stream& stream, const Tensor& scores, const IndexInputs& in) {
  const IndexSizes n(in);
  const int64_t C = in.where.slots;
  dispatch_floating(in.q.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    stream.pool().for_ranges(n.tokens, kTaskElements / (C * n.heads * n.d), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const SeenSlots seen(in.where, t);
        const T *q = in.q.data<T>() + t * n.heads * n.d, *w = in.w.data<T>() + t * n.heads,
                *keys = in.k.data<T>() + seen.row * C * n.d;
        A* to = scores.data<A>() + t * C;
        for (int64_t j = 0; j < C; ++j) {
          if (!seen.sees(j)) {
            to[j] = -std::numeric_limits<A>::infinity();
            continue;
          }
          A sum = 0;
          for (int64_t h = 0; h < n.heads; ++h)
            sum += A(w[h]) * std::max(index_dot<A>(q + h * n.d, keys + j * n.d, n.d), A(0));
          to[j] = A(in.scale) * sum;
        }
      }
    });
  });
}

void index_scores_backward(Stream& stream, const IndexGradients& to, const Tensor& dscores, const IndexInputs& in) {
  const IndexSizes n(in);
  const int64_t C = in.where.slots, d = n.d, H = n.heads;
  dispatch_floating(in.q.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const auto query = [&](int64_t t, int64_t h) { return in.q.data<T>() + (t * H + h) * d; };
    const auto key = [&](int64_t row, int64_t j) { return in.k.data<T>() + (row * C + j) * d; };
    stream.pool().for_ranges(n.tokens, kTaskElements / (C * H * d), [&](int64_t begin, int64_t end) {
      std::vector<A> dq(static_cast<size_t>(d));
      for (int64_t t = begin; t < end; ++t) {
        const SeenSlots seen(in.where, t);
        const A* g = dscores.data<A>() + t * C;
        for (int64_t h = 0; h < H; ++h) {
          const A w = A(in.w.data<T>()[t * H + h]);
          std::ranges::fill(dq, A(0));
          A dw = 0;
          for (int64_t j = 0; j <= seen.last; ++j) {
            if (g[j] == A(0)) continue;
            const T* k = key(seen.row, j);
            const A s = index_dot<A>(query(t, h), k, d);
            if (!(s > A(0))) continue;
            const A scaled = g[j] * A(in.scale);
            dw += scaled * s;
            for (int64_t c = 0; c < d; ++c) dq[static_cast<size_t>(c)] += scaled * w * A(k[c]);
          }
          to.dw.data<T>()[t * H + h] = T(dw);
          for (int64_t c = 0; c < d; ++c) to.dq.data<T>()[(t * H + h) * d + c] = T(dq[static_cast<size_t>(c)]);
        }
      }
    });
    stream.pool().for_ranges(in.where.rows * C, kTaskElements / (n.tokens * H * d + 1),
                             [&](int64_t begin, int64_t end) {
                               for (int64_t slot = begin; slot < end; ++slot) {
                                 const int64_t row = slot / C, j = slot % C;
                                 A* dk = to.dk.data<A>() + slot * d;
                                 for (int64_t t = 0; t < n.tokens; ++t) {
                                   const SeenSlots seen(in.where, t);
                                   const A g = dscores.data<A>()[t * C + j];
                                   if (seen.row != row || j > seen.last || g == A(0)) continue;
                                   for (int64_t h = 0; h < H; ++h) {
                                     const T* q = query(t, h);
                                     if (!(index_dot<A>(q, key(row, j), d) > A(0))) continue;
                                     const A factor = g * A(in.scale) * A(in.w.data<T>()[t * H + h]);
                                     for (int64_t c = 0; c < d; ++c) dk[c] += factor * A(q[c]);
                                   }
                                 }
                               }
                             });
  });
}

void choose_keys(Stream& stream, const Tensor& chosen, const Tensor& scores) {
  const int64_t K = chosen.size(1), C = scores.size(1);
  dispatch_accumulator(scores.dtype(), [&]<class A>() {
    stream.pool().for_ranges(scores.size(0), kTaskElements / (8 * C), [&](int64_t begin, int64_t end) {
      std::vector<int32_t> slots;
      for (int64_t t = begin; t < end; ++t) {
        const A* of = scores.data<A>() + t * C;
        slots.clear();
        for (int64_t j = 0; j < C; ++j)
          if (of[j] > -std::numeric_limits<A>::infinity()) slots.push_back(static_cast<int32_t>(j));
        const auto count = std::min(K, static_cast<int64_t>(slots.size()));
        const auto last = slots.begin() + count;
        if (count < static_cast<int64_t>(slots.size()))
          std::nth_element(slots.begin(), last, slots.end(),
                           [of](int32_t a, int32_t b) { return of[a] > of[b] || (of[a] == of[b] && a < b); });
        std::sort(slots.begin(), last);
        int32_t* to = chosen.data<int32_t>() + t * K;
        std::fill(std::copy(slots.begin(), last, to), to + K, -1);
      }
    });
  });
}

void keep_chosen(Stream& stream, const Tensor& scores, const Tensor& chosen) {
  const int64_t K = chosen.size(1), C = scores.size(1);
  dispatch_accumulator(scores.dtype(), [&]<class A>() {
    for_rows(stream, scores, [&](int64_t t) {
      const int32_t *next = chosen.data<int32_t>() + t * K, *const end = next + K;
      for (int64_t j = 0; j < C; ++j) {
        if (next != end && *next == j)
          ++next;
        else
          scores.data<A>()[t * C + j] = -std::numeric_limits<A>::infinity();
      }
    });
  });
}

void index_divergence(Stream& stream, const Tensor& divergence, const Tensor& scores, const Tensor& p,
                      const Tensor& ids) {
  const int64_t C = scores.size(1);
  dispatch_accumulator(scores.dtype(), [&]<class A>() {
    for_rows(stream, scores, [&](int64_t t) {
      A* of = scores.data<A>() + t * C;
      const A* target = p.data<A>() + t * C;
      const A hidden = -std::numeric_limits<A>::infinity(), top = *std::max_element(of, of + C);
      divergence.data<A>()[t] = 0;
      if (is_padding(ids, t) || top == hidden) {
        std::fill_n(of, C, A(0));
        return;
      }
      A sum = 0;
      for (int64_t j = 0; j < C; ++j) sum += std::exp(of[j] - top);
      const A lse = top + std::log(sum);
      A total = 0;
      for (int64_t j = 0; j < C; ++j) {
        if (of[j] == hidden) {
          of[j] = 0;
          continue;
        }
        if (target[j] > A(0)) total += target[j] * (std::log(target[j]) - (of[j] - lse));
        of[j] = std::exp(of[j] - lse) - target[j];
      }
      divergence.data<A>()[t] = total;
    });
  });
}

void mean_over_tokens(Stream& /*stream*/, const Tensor& mean, const Tensor& share, const Tensor& values,
                      const Tensor& ids) {
  dispatch_accumulator(values.dtype(), [&]<class A>() {
    int64_t count = 0;
    A sum = 0;
    for (int64_t t = 0; t < values.elements(); ++t) {
      if (is_padding(ids, t)) continue;
      ++count;
      sum += values.data<A>()[t];
    }
    share.data<A>()[0] = count > 0 ? A(1) / A(count) : A(0);
    mean.data<A>()[0] = share.data<A>()[0] * sum;
  });
}

void scale_by(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& a, const Tensor& b) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const A factor = a.data<A>()[0] * b.data<A>()[0];
    stream.pool().for_ranges(x.elements(), kTaskElements, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) y.data<T>()[i] = T(factor * A(x.data<T>()[i]));
    });
  });
}

}  // namespace witan::kernels::cpu
