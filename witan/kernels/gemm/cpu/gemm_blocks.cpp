#include "witan/kernels/gemm/cpu/gemm_blocks.h"

#include <algorithm>
#include <atomic>
#include <type_traits>

#include "witan/base/threads/threads.h"
#include "witan/kernels/gemm/cpu/gemm_few.h"
#include "witan/kernels/gemm/cpu/gemm_pack.h"
#include "witan/kernels/gemm/cpu/gemm_tile.h"

namespace witan::kernels::cpu {
namespace {

constexpr int64_t kDepth = 256;                // block of K: a strip of A stays in the L1 cache
constexpr int64_t kBlockBytes = 512 << 10;     // of packed B: half of an L2 cache
constexpr int64_t kMostRows = 19 * kTileRows;  // rows of a block of C: enough to repay the packing of B
constexpr int64_t kFewestRows = 4 * kTileRows;
constexpr int64_t kFewRows = 2 * kTileRows;  // rows of a block that does not repay the packing of B
constexpr int64_t kAheadElements = 1024;     // of B, in whole cache lines: about memory latency times bandwidth

template <class T>
constexpr int64_t kMostColumns = kBlockBytes / kDepth / static_cast<int64_t>(sizeof(T));

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// One thread's scratch.
template <class T>
struct Scratch {
  T* b;      // [panels, depth, kPanelColumns]
  T* a;      // [strips of few rows, depth, kStripRows]
  T* block;  // [kMostRows, kMostColumns]: sums of a 16-bit C over several blocks of K

  static constexpr int64_t kStrip = kDepth * kStripRows;
  static constexpr int64_t kB = kDepth * kMostColumns<T>, kA = kFewRows / kTileRows * kStrip;
  static constexpr int64_t kBlock = kMostRows * kMostColumns<T>;
};

bool sums_apart(DType c, int64_t depth) {
  return (c == DType::bf16 || c == DType::f16) && depth > kDepth;
}

template <class T>
int64_t scratch_elements(DType c, int64_t depth) {
  return Scratch<T>::kB + Scratch<T>::kA + (sums_apart(c, depth) ? Scratch<T>::kBlock : 0);
}

// The columns of op(b) from n = `lane` on, or the rows of op(a) from m = `lane` on, both from k on.
template <class M>
auto pack_source(const M& matrix, bool k_adjacent, int64_t k, int64_t lane) {
  using S = std::remove_const_t<std::remove_pointer_t<decltype(matrix.data)>>;
  return PackSource<S>{matrix.data + (k_adjacent ? k + lane * matrix.stride : k * matrix.stride + lane), matrix.stride,
                       k_adjacent};
}

// g++ vectorises stores of a 16-bit type's bits, but not of the struct.
template <class C, class T>
void put(C& to, T value) {
  if constexpr (std::is_same_v<C, Accumulator<C>>)
    to = value;
  else
    to.bits = C(value).bits;
}

// c [rows, columns] (=|+=) tile, whose rows are `tile_stride` apart.
template <class C, class T>
void write_tile(C* c, int64_t stride, Write write, const T* tile, int64_t tile_stride, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; ++i, c += stride, tile += tile_stride) {
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
// Part i of `parts` parts of nearly equal size.
Range part(Range whole, int64_t i, int64_t parts) {
  return {whole.begin + whole.size() * i / parts, whole.begin + whole.size() * (i + 1) / parts};
}

// c [rows, columns] (=|+=) the tile that kernel(tile, stride) computes, whose rows have room for `width` columns.
template <class T, class C, class Kernel>
void form_tile(C* c, int64_t stride, Write write, int64_t rows, int64_t columns, int64_t width, const Kernel& kernel) {
  for (int64_t i = 0; i < rows; ++i)  // loads C while the sums are computed
    for (int64_t j = 0; j < columns; j += 64 / static_cast<int64_t>(sizeof(C)))
      __builtin_prefetch(c + i * stride + j, 1);
  if constexpr (std::is_same_v<C, T>)
    if (write == Write::overwrite && columns == width) return kernel(c, stride);
  alignas(kVectorBytes) T tile[kTileRows * kPanelColumns<T>];
  kernel(tile, width);
  write_tile(c, stride, write, tile, width, rows, columns);
}

// Packs rows `strip` of op(a) in the range k, and prefetches the next strip, which is likely to be packed next.
template <class S, class C, class T>
void pack_strip(T* to, const Product<S, C>& product, Range strip, Range k) {
  const auto& [a, stride, transpose] = product.a;
  const bool k_adjacent = transpose == Transpose::no;
  pack<kStripRows>(
      to, pack_source(product.a, k_adjacent, k.begin, strip.begin), k.size(), strip.size(), product.M - strip.begin,
      k_adjacent ? Ahead<S>(a + strip.end * stride + k.begin, stride, strip.size(), k.size()) : Ahead<S>());
}

// The part of B that is read after `width` columns of op(b) from n on, if B's k is adjacent: the columns to the right
// or, after the last column, the first columns of the next block of K. After the last block, the next product's B may
// follow in memory.
template <class S, class C>
Ahead<S> after(const Product<S, C>& product, Range columns, int64_t n, int64_t width, Range k) {
  const bool last = n + width >= columns.end && k.end < product.K;
  const int64_t next_n = last ? columns.begin : n + width, next_k = last ? k.end : k.begin;
  return {product.b.data + next_n * product.b.stride + next_k, product.b.stride, width,
          std::min(kDepth, product.K - next_k)};
}

// Packs the panel of op(b) that begins at column n, in the range k.
template <class S, class C, class T>
void pack_panel(T* to, const Product<S, C>& product, Range columns, int64_t n, Range k) {
  const bool k_adjacent = product.b.transpose == Transpose::yes;
  pack<kPanelColumns<T>>(to, pack_source(product.b, k_adjacent, k.begin, n), k.size(),
                         std::min<int64_t>(kPanelColumns<T>, columns.end - n), product.N - n,
                         k_adjacent ? after(product, columns, n, kPanelColumns<T>, k) : Ahead<S>());
}

// Adds the products over the range k to a block of C, which begins at product.c; rows and columns are those of op(a)
// and op(b). B is packed once for all strips of A or, if there is one strip, a panel at a time, so that it stays in the
// L1 cache.
template <class S, class C, class T = Accumulator<S>>
void multiply_packed(const Product<S, C>& product, Range rows, Range columns, Range k, Write write,
                     const Scratch<T>& scratch) {
  constexpr int64_t kColumns = kPanelColumns<T>;
  const int64_t depth = k.size(), strips = ceil_div(rows.size(), kTileRows);
  for (int64_t i = 0; i < strips; ++i) {
    const Range strip = part(rows, i, strips);
    pack_strip(scratch.a, product, strip, k);
    for (int64_t n = columns.begin; n < columns.end; n += kColumns) {
      T* panel = scratch.b + (strips > 1 ? (n - columns.begin) * depth : 0);
      const int64_t wide = std::min(kColumns, columns.end - n);
      if (i == 0) pack_panel(panel, product, columns, n, k);
      form_tile<T>(product.c.data + (strip.begin - rows.begin) * product.c.stride + n - columns.begin, product.c.stride,
                   write, strip.size(), wide, kColumns, [&](T* tile, int64_t stride) {
                     tile_kernel<T>(strip.size())(tile, stride, scratch.a, panel, depth);
                   });
    }
  }
}

// Multiplies few rows: B is read in place, except for the last columns that do not fill a tile. All strips of A are
// packed first.
template <class S, class C, class T = Accumulator<S>>
void multiply_unpacked(const Product<S, C>& product, Range rows, Range columns, Range k, Write write,
                       const Scratch<T>& scratch) {
  const S* b = product.b.data;
  const bool k_adjacent = product.b.transpose == Transpose::yes;
  const int64_t b_stride = product.b.stride, depth = k.size(), strips = ceil_div(rows.size(), kTileRows);
  for (int64_t i = 0; i < strips; ++i)
    pack_strip(scratch.a + i * Scratch<T>::kStrip, product, part(rows, i, strips), k);
  const int64_t least = k_adjacent ? kLanes<T> : kPanelColumns<T>;
  const int64_t widest = k_adjacent || strips > 1 ? least : few_rows<T, S>(rows.size()).wide_columns;
  for (int64_t n = columns.begin, width = 0; n < columns.end; n += width) {
    const int64_t left = columns.end - n;
    width = left >= widest ? widest : std::min(left, least);
    const bool rest = width < least;
    if (rest) pack_panel(scratch.b, product, columns, n, k);
    for (int64_t i = 0; i < strips; ++i) {
      const Range strip = part(rows, i, strips);
      const T* a = scratch.a + i * Scratch<T>::kStrip;
      C* c = product.c.data + (strip.begin - rows.begin) * product.c.stride + n - columns.begin;
      const auto kernel = [&](T* tile, int64_t stride) {
        const FewRows<T, S>& kernels = few_rows<T, S>(strip.size());
        if (rest)
          tile_kernel<T>(strip.size())(tile, stride, a, scratch.b, depth);
        else if (k_adjacent)
          kernels.transposed(tile, stride, a, b + n * b_stride + k.begin, b_stride, depth,
                             after(product, columns, n, width, k).part(i, strips));
        else  // the first strip prefetches rows below, the next one columns to the right
          (width > least ? kernels.wide : kernels.narrow)(tile, stride, a, b + k.begin * b_stride + n, b_stride, depth,
                                                          i == 0 ? kAheadElements / width * b_stride : width);
      };
      form_tile<T>(c, product.c.stride, write, strip.size(), width, rest ? kPanelColumns<T> : width, kernel);
    }
  }
}

// Computes one block of C, which begins at product.c; rows and columns are those of op(a) and op(b).
template <class S, class C, class T = Accumulator<S>>
void multiply_block(const Product<S, C>& product, Range rows, Range columns, Write write, const Scratch<T>& scratch) {
  const auto multiply_steps = rows.size() <= kFewRows ? multiply_unpacked<S, C, T> : multiply_packed<S, C, T>;
  Range k{0, 0};
  do {  // runs once even if K is 0, because an empty sum is written too
    k = {k.end, std::min(k.end + kDepth, product.K)};
    multiply_steps(product, rows, columns, k, write, scratch);
    write = Write::accumulate;
  } while (k.end < product.K);
}

template <class S, class C>
struct Task {
  const Product<S, C>* product;
  Range rows, columns;

  void run(Write write, const Scratch<Accumulator<S>>& scratch) const {
    Product<S, C> block = *product;
    block.c.data += rows.begin * block.c.stride + columns.begin;
    if constexpr (!std::is_same_v<C, Accumulator<C>>) {
      if (sums_apart(dtype_of<C>(), block.K)) {
        const int64_t stride = ceil_div(columns.size(), kPanelColumns<float>) * kPanelColumns<float>;
        multiply_block(Product<S, float>{{scratch.block, stride},
                                         {block.a.data, block.a.stride, block.a.transpose},
                                         {block.b.data, block.b.stride, block.b.transpose},
                                         block.M,
                                         block.N,
                                         block.K},
                       rows, columns, Write::overwrite, scratch);
        write_tile(block.c.data, block.c.stride, write, scratch.block, stride, rows.size(), columns.size());
        return;
      }
    }
    multiply_block(block, rows, columns, write, scratch);
  }
};

// Divides products into blocks of at most kMostRows x kMostColumns, and into smaller ones if there would be too few for
// all threads.
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
  // Each thread takes tasks until none is left, and has scratch of its own.
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
template void multiply(Stream&, Write, const std::vector<Product<f16, f16>>&, const Tensor&);
template void multiply(Stream&, Write, const std::vector<Product<f16, float>>&, const Tensor&);

}  // namespace witan::kernels::cpu
