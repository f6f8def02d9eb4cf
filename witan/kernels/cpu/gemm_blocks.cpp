#include "witan/kernels/cpu/gemm_blocks.h"

#include <algorithm>
#include <atomic>
#include <type_traits>

#include "witan/base/threads.h"
#include "witan/kernels/cpu/gemm_pack.h"
#include "witan/kernels/cpu/gemm_tile.h"

namespace witan::kernels::cpu {
namespace {

constexpr int64_t kDepth = 256;                // steps of K: a strip of A stays in the first-level cache
constexpr int64_t kBlockBytes = 512 << 10;     // of packed B: half of a second-level cache
constexpr int64_t kMostRows = 19 * kTileRows;  // of a block of C: enough to repay the packing of B
constexpr int64_t kFewestRows = 4 * kTileRows;

template <class T>
constexpr int64_t kMostColumns = kBlockBytes / kDepth / static_cast<int64_t>(sizeof(T));

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// One thread's scratch.
template <class T>
struct Scratch {
  T* b;      // [panels, depth, kPanelColumns]
  T* a;      // [depth, kStripRows]
  T* block;  // [kMostRows, kMostColumns]: sums of a bfloat16 C over several steps of K

  static constexpr int64_t kB = kDepth * kMostColumns<T>, kA = kDepth * kStripRows;
  static constexpr int64_t kBlock = kMostRows * kMostColumns<T>;
};

bool sums_apart(DType c, int64_t depth) {
  return c == DType::bf16 && depth > kDepth;
}

template <class T>
int64_t scratch_elements(DType c, int64_t depth) {
  return Scratch<T>::kB + Scratch<T>::kA + (sums_apart(c, depth) ? Scratch<T>::kBlock : 0);
}

// The columns of op(b), or the rows of op(a), from number `lane` and step k on.
template <class M>
auto lines(const M& matrix, bool lanes_apart, int64_t k, int64_t lane) {
  using S = std::remove_const_t<std::remove_pointer_t<decltype(matrix.data)>>;
  return Lines<S>{matrix.data + (lanes_apart ? k + lane * matrix.stride : k * matrix.stride + lane), matrix.stride,
                  lanes_apart};
}

// g++ vectorises the store of a bfloat16's bits, but not of the struct.
template <class C, class T>
void put(C& to, T value) {
  to = value;
}
void put(bf16& to, float value) {
  to.bits = bf16(value).bits;
}

// c [rows, columns] (=|+=) tile, whose rows are kPanelColumns apart.
template <class C, class T>
void write_tile(C* c, int64_t stride, Write write, const T* tile, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; ++i, c += stride, tile += kPanelColumns<T>) {
    if (write == Write::overwrite) {
#pragma omp simd
      for (int64_t j = 0; j < columns; ++j) put(c[j], tile[j]);
    } else {
#pragma omp simd
      for (int64_t j = 0; j < columns; ++j) put(c[j], T(c[j]) + tile[j]);
    }
  }
}

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};
// Part i of `parts` even ones.
Range part(Range whole, int64_t i, int64_t parts) {
  return {whole.begin + whole.size() * i / parts, whole.begin + whole.size() * (i + 1) / parts};
}

// c [rows, columns] (=|+=) a strip of A times a panel of B.
template <class C, class T>
void multiply_into(const Matrix<C>& c, Write write, int64_t rows, int64_t columns, const T* a, const T* b,
                   int64_t depth) {
  constexpr int64_t kColumns = kPanelColumns<T>;
  for (int64_t i = 0; i < rows; ++i)  // C arrives while the sums are formed
    for (int64_t j = 0; j < columns; j += 64 / static_cast<int64_t>(sizeof(C)))
      __builtin_prefetch(c.data + i * c.stride + j, 1);
  if constexpr (std::is_same_v<C, T>)
    if (write == Write::overwrite && columns == kColumns) return tile_kernel<T>(rows)(c.data, c.stride, a, b, depth);
  alignas(kVectorBytes) T tile[kTileRows * kColumns];
  tile_kernel<T>(rows)(tile, kColumns, a, b, depth);
  write_tile(c.data, c.stride, write, tile, rows, columns);
}

// One block of C, which begins at product.c; rows and columns say which of op(a) and op(b).
template <class S, class C, class T = Accumulator<S>>
void multiply_block(const Product<S, C>& product, Range rows, Range columns, Write write, const Scratch<T>& scratch) {
  constexpr int64_t kColumns = kPanelColumns<T>;
  const int64_t strips = ceil_div(rows.size(), kTileRows);
  const bool keeps = strips > 1;  // panels of B for the next strip
  int64_t k = 0;
  do {  // once even if K is 0: the sum of nothing is written too
    const int64_t depth = std::min(kDepth, product.K - k);
    for (int64_t i = 0; i < strips; ++i) {
      const Range strip = part(rows, i, strips);
      pack<kStripRows>(scratch.a, lines(product.a, product.a.transpose == Transpose::no, k, strip.begin), depth,
                       strip.size(), product.M - strip.begin);
      for (int64_t n = columns.begin; n < columns.end; n += kColumns) {
        T* panel = scratch.b + (keeps ? (n - columns.begin) * depth : 0);
        if (i == 0)
          pack<kColumns>(panel, lines(product.b, product.b.transpose == Transpose::yes, k, n), depth,
                         std::min(kColumns, columns.end - n), product.N - n);
        const Matrix<C> to{product.c.data + (strip.begin - rows.begin) * product.c.stride + n - columns.begin,
                           product.c.stride};
        multiply_into(to, write, strip.size(), std::min(kColumns, columns.end - n), scratch.a, panel, depth);
      }
    }
    write = Write::accumulate;
    k += depth;
  } while (k < product.K);
}

template <class S, class C>
struct Task {
  const Product<S, C>* product;
  Range rows, columns;

  void run(Write write, const Scratch<Accumulator<S>>& scratch) const {
    Product<S, C> block = *product;
    block.c.data += rows.begin * block.c.stride + columns.begin;
    if constexpr (std::is_same_v<C, bf16>) {
      if (sums_apart(DType::bf16, block.K)) {
        const int64_t stride = ceil_div(columns.size(), kPanelColumns<float>) * kPanelColumns<float>;
        multiply_block(Product<S, float>{{scratch.block, stride},
                                         {block.a.data, block.a.stride, block.a.transpose},
                                         {block.b.data, block.b.stride, block.b.transpose},
                                         block.M,
                                         block.N,
                                         block.K},
                       rows, columns, Write::overwrite, scratch);
        for (int64_t i = 0; i < rows.size(); ++i)
          write_tile(block.c.data + i * block.c.stride, block.c.stride, write, scratch.block + i * stride, 1,
                     columns.size());
        return;
      }
    }
    multiply_block(block, rows, columns, write, scratch);
  }
};

// Blocks of at most kMostRows x kMostColumns; smaller ones where there would be too few to keep the threads busy.
template <class S, class C>
std::vector<Task<S, C>> cut(const std::vector<Product<S, C>>& products, int threads) {
  constexpr int64_t kColumns = kPanelColumns<Accumulator<S>>;
  std::vector<Task<S, C>> tasks;
  const int64_t wanted = ceil_div(threads, std::max<int64_t>(std::ssize(products), 1));
  for (const auto& product : products) {
    if (product.M == 0 || product.N == 0) continue;
    const int64_t panels = ceil_div(product.N, kColumns);
    const int64_t down = std::max(ceil_div(product.M, kMostRows), std::min(wanted, ceil_div(product.M, kFewestRows)));
    const int64_t across =
        std::max(ceil_div(product.N, kMostColumns<Accumulator<S>>), std::min(ceil_div(wanted, down), panels));
    for (int64_t j = 0; j < across; ++j)
      for (int64_t i = 0; i < down; ++i) {
        const Range columns = part({0, panels}, j, across);
        tasks.push_back({&product,
                         part({0, product.M}, i, down),
                         {columns.begin * kColumns, std::min(columns.end * kColumns, product.N)}});
      }
  }
  return tasks;
}

}  // namespace

Tensor gemm_workspace(Stream& stream, DType a, DType c, int64_t most_depth) {
  return dispatch_floating(a, [&]<class S>() {
    using T = Accumulator<S>;
    return stream.empty({stream.pool().threads(), scratch_elements<T>(c, most_depth)}, dtype_of<T>(),
                        MemoryTag::workspace);
  });
}

template <class S, class C>
void multiply(Stream& stream, Write write, const std::vector<Product<S, C>>& products, const Tensor& workspace) {
  using T = Accumulator<S>;
  const auto tasks = cut(products, stream.pool().threads());
  const auto count = static_cast<int64_t>(tasks.size());
  std::atomic<int64_t> next = 0;
  // A thread takes tasks until none is left, so that its scratch is its own.
  stream.pool().run(std::min<int64_t>(workspace.size(0), count), [&](int64_t thread) {
    T* own = workspace.data<T>() + thread * workspace.stride(0);
    const Scratch<T> scratch{own, own + Scratch<T>::kB, own + Scratch<T>::kB + Scratch<T>::kA};
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;)
      tasks[static_cast<size_t>(i)].run(write, scratch);
  });
}

template void multiply(Stream&, Write, const std::vector<Product<float, float>>&, const Tensor&);
template void multiply(Stream&, Write, const std::vector<Product<double, double>>&, const Tensor&);
template void multiply(Stream&, Write, const std::vector<Product<bf16, bf16>>&, const Tensor&);
template void multiply(Stream&, Write, const std::vector<Product<bf16, float>>&, const Tensor&);

}  // namespace witan::kernels::cpu
