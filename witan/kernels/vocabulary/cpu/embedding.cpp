#include <limits>
#include <numeric>

#include "witan/base/threads/threads.h"
#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/vocabulary/vocabulary.h"

namespace witan::kernels::cpu {
namespace {

// The ids whose rows a table has.
struct Held {
  const int32_t* ids;
  int64_t begin, rows;
  // The row of token t, or -1.
  int64_t row(int64_t t) const {
    const int64_t row = ids[t] - begin;
    return row >= 0 && row < rows ? row : -1;
  }
};

// Counting sort: `sorted` has the tokens in order of their rows, those of row v in [begin[v], begin[v + 1]).
void sort_by_row(int32_t* begin, int32_t* sorted, const Held& held, int64_t T) {
  const int64_t V = held.rows;
  std::fill_n(begin, V + 1, 0);
  for (int64_t t = 0; t < T; ++t)
    if (const int64_t row = held.row(t); row >= 0) ++begin[row + 1];
  std::partial_sum(begin, begin + V + 1, begin);
  for (int64_t t = 0; t < T; ++t)
    if (const int64_t row = held.row(t); row >= 0) sorted[begin[row]++] = static_cast<int32_t>(t);
  // Placing the tokens has moved each begin to its end, which is the next row's begin.
  std::copy_backward(begin, begin + V, begin + V + 1);
  begin[0] = 0;
}

// out[d] (=|+=) the sum over the `count` listed tokens of dy[token, d].
template <class G, class T>
void sum_tokens(G* __restrict out, Write write, const T* dy, int64_t D, const int32_t* tokens, int64_t count) {
  using A = Accumulator<T>;
  constexpr int64_t kColumns = 256, kBlock = 64;
  for (int64_t first = 0; first < D; first += kColumns) {
    const int64_t width = std::min(kColumns, D - first);
    std::array<A, kColumns> total{};
    for (int64_t i = 0; i < count; i += kBlock) {
      std::array<A, kColumns> block{};
      for (int64_t j = i; j < std::min(i + kBlock, count); ++j) {
        const T* __restrict in = dy + tokens[j] * D + first;
        A* __restrict sums = block.data();
#pragma omp simd
        for (int64_t d = 0; d < width; ++d) sums[d] += A(in[d]);
      }
      for (int64_t d = 0; d < width; ++d) total[static_cast<size_t>(d)] += block[static_cast<size_t>(d)];
    }
    const bool add = write == Write::accumulate;
    for (int64_t d = 0; d < width; ++d)
      store(out[first + d], (add ? A(out[first + d]) : A(0)) + total[static_cast<size_t>(d)]);
  }
}

}  // namespace

void embedding_forward(Stream& stream, const Tensor& y, const Tensor& ids, const Tensor& w, int64_t begin) {
  const Held held{ids.data<int32_t>(), begin, w.size(0)};
  dispatch_floating(w.dtype(), [&]<class T>() {
    for_rows(stream, y, [&, D = w.size(1)](int64_t t) {
      T* out = y.data<T>() + t * D;
      if (const int64_t row = held.row(t); row >= 0)
        std::copy_n(w.data<T>() + row * D, D, out);
      else
        std::fill_n(out, D, T(0.0f));
    });
  });
}

void embedding_backward(Stream& stream, const Tensor& dw, Write write, const Tensor& order, const Tensor& dy,
                        const Tensor& ids, int64_t begin) {
  const int64_t V = dw.size(0), D = dw.size(1);
  int32_t *begins = order.data<int32_t>(), *sorted = begins + V + 1;
  sort_by_row(begins, sorted, {ids.data<int32_t>(), begin, V}, ids.elements());
  dispatch_floating(dw.dtype(), [&]<class G>() {
    dispatch_floating(dy.dtype(), [&]<class T>() {
      for_rows(stream, dw, [&](int64_t v) {
        const int64_t count = begins[v + 1] - begins[v];
        G* out = dw.data<G>() + v * D;
        if (count > 0)
          sum_tokens(out, write, dy.data<T>(), D, sorted + begins[v], count);
        else if (write == Write::overwrite)
          std::fill_n(out, D, G(0.0f));
      });
    });
  });
}

}  // namespace witan::kernels::cpu
