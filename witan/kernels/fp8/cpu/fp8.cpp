#include "witan/kernels/fp8/fp8.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <limits>
#include <vector>

#include "witan/base/threads/threads.h"
#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/common/step_report.h"

namespace witan::kernels::cpu {
namespace {

using Numbers = std::array<float, kFp8Block>;

uint32_t magnitude_of(float value) {
  return std::bit_cast<uint32_t>(value) & 0x7FFFFFFFu;
}

// At most 128 rows by 128 columns of a matrix; missing rows and columns are zeros.
struct QuantisedTile {
  int64_t rows = 0, columns = 0;
  std::array<Numbers, kFp8Block> at;

  // row(i): the address of the first column of the tile's i-th row.
  template <class Row>
  void read(const Row& row, int64_t of_rows, int64_t of_columns) {
    rows = of_rows, columns = of_columns;
    for (int64_t i = 0; i < rows; ++i) {
      const auto* from = row(i);
      for (int64_t j = 0; j < columns; ++j)
        at[static_cast<size_t>(i)][static_cast<size_t>(j)] = static_cast<float>(from[j]);
    }
  }
  float operator()(int64_t i, int64_t j) const { return at[static_cast<size_t>(i)][static_cast<size_t>(j)]; }
  uint32_t largest_of_row(int64_t i) const {
    uint32_t largest = 0;
    for (int64_t j = 0; j < columns; ++j) largest = std::max(largest, magnitude_of((*this)(i, j)));
    return largest;
  }
  uint32_t largest_of_column(int64_t j) const {
    uint32_t largest = 0;
    for (int64_t i = 0; i < rows; ++i) largest = std::max(largest, magnitude_of((*this)(i, j)));
    return largest;
  }
  uint32_t largest_of_all() const {
    uint32_t largest = 0;
    for (int64_t i = 0; i < rows; ++i) largest = std::max(largest, largest_of_row(i));
    return largest;
  }
};

// The format of a tile, and its scale: from its own largest magnitude, or from a given one.
struct Scaling {
  Fp8Format format = Fp8Format::e4m3;
  const float* given = nullptr;

  Fp8Scale operator()(uint32_t largest) const {
    return given ? fp8_scale(largest, std::bit_cast<uint32_t>(*given), format) : fp8_scale(largest, format);
  }
};

// to[i] = number(i), rounded to the format.
template <class Number>
void encode(uint8_t* to, int64_t count, Fp8Format format, const Number& number) {
  if (format == Fp8Format::e4m3)
    for (int64_t i = 0; i < count; ++i) to[i] = e4m3(number(i)).bits;
  else
    for (int64_t i = 0; i < count; ++i) to[i] = e5m2(number(i)).bits;
}

uint8_t* codes_of(const Tensor& tensor) {
  return reinterpret_cast<uint8_t*>(tensor.raw());
}

struct RowRange {
  int64_t first, rows;
};
RowRange rows_of_block(const Fp8RowBlocks& blocks, int64_t block, int64_t M) {
  if (!blocks.table.defined()) return {block * kFp8Block, std::min(kFp8Block, M - block * kFp8Block)};
  const int32_t* entry = blocks.table.data<int32_t>() + block * 2;
  return {entry[0], entry[1]};
}

// The group of a block; blocks are ordered by expert.
int64_t group_of(const Fp8RowBlocks& blocks, int64_t block) {
  const RowGroups& groups = blocks.groups;
  if (!groups.begin.defined()) return 0;
  const int64_t E = groups.experts(), R = groups.sources();
  const int64_t* begin = (groups.source_begin.defined() ? groups.source_begin : groups.begin).data<int64_t>();
  return fp8_group_of(block, E * R, [&](int64_t g) { return begin[g % R * E + g / R]; });
}

// The rows of a block of x, which an index may name.
template <class T>
auto rows_from(const Tensor& x, const RowIndex& x_rows, int64_t first, int64_t column) {
  const int64_t* const index = x_rows.defined() ? x_rows.index.data<int64_t>() : nullptr;
  return [=, at = x.data<T>() + column, stride = x.stride(0), divisor = x_rows.divisor](int64_t i) {
    return at + (index ? index[first + i] / divisor : first + i) * stride;
  };
}

void write_rows(const Fp8Rows& to, const QuantisedTile& tile, int64_t row, int64_t block, const Scaling& scaling) {
  const int64_t M = to.values.size(0), K = to.values.size(1);
  for (int64_t i = 0; i < tile.rows; ++i) {
    const Fp8Scale scale = scaling(tile.largest_of_row(i));
    encode(codes_of(to.values) + (row + i) * K + block * kFp8Block, tile.columns, scaling.format,
           [&](int64_t j) { return tile(i, j) * scale.inverse; });
    to.scales.data<float>()[block * M + row + i] = scale.scale;
  }
}

void write_columns(const Fp8Columns& to, const QuantisedTile& tile, int64_t row_block, int64_t column,
                   const Scaling& scaling) {
  const int64_t K = to.values.size(0), P = to.values.size(1);
  for (int64_t j = 0; j < tile.columns; ++j) {
    const Fp8Scale scale = scaling(tile.largest_of_column(j));
    encode(codes_of(to.values) + (column + j) * P + row_block * kFp8Block, kFp8Block, scaling.format,
           [&](int64_t i) { return (i < tile.rows ? tile(i, j) : 0.0F) * scale.inverse; });
    to.scales.data<float>()[row_block * K + column + j] = scale.scale;
  }
}

void write_weights(const Fp8Weights& to, const QuantisedTile& tile, int64_t expert, int64_t n, int64_t k,
                   const Scaling& scaling) {
  const Fp8Scale scale = scaling(tile.largest_of_all());
  const int64_t down = to.scales.size(1), across = to.scales.size(2);
  to.scales.data<float>()[(expert * down + n / kFp8Block) * across + k / kFp8Block] = scale.scale;
  const auto put = [&](const Tensor& tensor, int64_t row, int64_t column, float value) {
    tensor.data<e4m3>()[expert * tensor.stride(0) + row * tensor.stride(1) + column] = e4m3(value);
  };
  for (int64_t i = 0; i < tile.rows; ++i)
    for (int64_t j = 0; j < tile.columns; ++j) {
      const float value = tile(i, j) * scale.inverse;
      if (to.values.defined()) put(to.values, n + i, k + j, value);
      if (to.transposed.defined()) put(to.transposed, k + j, n + i, value);
    }
}

// An operand in which K is adjacent, with `stride` elements between its `count` rows (M or N).
struct Operand {
  const uint8_t* first;
  int64_t stride, count;
  Fp8Format format = Fp8Format::e4m3;

  Numbers numbers(int64_t row, int64_t from, int64_t size) const {
    const uint8_t* const at = first + row * stride + from;
    return format == Fp8Format::e4m3 ? numbers_of<e4m3>(at, size) : numbers_of<e5m2>(at, size);
  }

 private:
  template <class Code>
  static Numbers numbers_of(const uint8_t* at, int64_t size) {
    Numbers out{};
    for (int64_t k = 0; k < size; ++k) out[static_cast<size_t>(k)] = static_cast<float>(std::bit_cast<Code>(at[k]));
    return out;
  }
};

constexpr int64_t kTileM = 16, kTileN = 64;

// to[i, j] (=|+=) sum over blocks of scale_a(i, block) scale_b(j, block) sum_k a[i,k] b[j,k], for one tile.
template <class T, class ScaleA, class ScaleB>
void multiply_tile(T* to, int64_t stride, Write write, const Operand& a, const Operand& b, int64_t K, int64_t m,
                   int64_t n, const ScaleA& scale_a, const ScaleB& scale_b) {
  const int64_t rows = std::min(kTileM, a.count - m), columns = std::min(kTileN, b.count - n);
  std::array<std::array<float, kTileN>, kTileM> sums{};
  std::array<Numbers, kTileM> left;
  for (int64_t block = 0; block < fp8_blocks(K); ++block) {
    const int64_t from = block * kFp8Block, size = std::min(kFp8Block, K - from);
    for (int64_t i = 0; i < rows; ++i) left[static_cast<size_t>(i)] = a.numbers(m + i, from, size);
    for (int64_t j = 0; j < columns; ++j) {
      const Numbers right = b.numbers(n + j, from, size);
      const float scale = scale_b(n + j, block);
      for (int64_t i = 0; i < rows; ++i) {
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (size_t k = 0; k < static_cast<size_t>(kFp8Block); ++k) sum += left[static_cast<size_t>(i)][k] * right[k];
        sums[static_cast<size_t>(i)][static_cast<size_t>(j)] += sum * (scale_a(m + i, block) * scale);
      }
    }
  }
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      T& out = to[(m + i) * stride + n + j];
      const float before = write == Write::accumulate ? static_cast<float>(out) : 0.0F;
      store(out, before + sums[static_cast<size_t>(i)][static_cast<size_t>(j)]);
    }
}

// Runs a task per tile of each expert's result: body(expert, m, n).
template <class Body>
void for_tiles(Stream& stream, const std::vector<int64_t>& rows, int64_t columns, const Body& body) {
  std::vector<int64_t> before(rows.size() + 1, 0);
  const int64_t across = (columns + kTileN - 1) / kTileN;
  for (size_t e = 0; e < rows.size(); ++e) before[e + 1] = before[e] + (rows[e] + kTileM - 1) / kTileM * across;
  stream.pool().run(before.back(), [&](int64_t task) {
    const auto e = static_cast<size_t>(std::upper_bound(before.begin(), before.end(), task) - before.begin()) - 1;
    const int64_t local = task - before[e];
    body(static_cast<int64_t>(e), local / across * kTileM, local % across * kTileN);
  });
}

template <class Body>
void dispatch_result(DType dtype, const Body& body) {
  if (dtype == DType::bf16) return body.template operator()<bf16>();
  body.template operator()<float>();
}

std::vector<int64_t> host_values(const Tensor& tensor, int64_t otherwise) {
  return tensor.defined() ? tensor.to_vector<int64_t>() : std::vector<int64_t>{otherwise};
}

}  // namespace

void fp8_row_blocks(Stream&, const Fp8RowBlocks& blocks, const RowGroups& groups) {
  const bool by_source = groups.source_count.defined();
  const int64_t E = groups.experts(), R = groups.sources();
  const auto begin = (by_source ? groups.source_begin : groups.begin).span<int64_t>();
  const auto count = (by_source ? groups.source_count : groups.count).span<int64_t>();
  int32_t* table = blocks.table.data<int32_t>();
  int64_t next = 0;
  for (int64_t e = 0; e < E; ++e) {
    blocks.groups.begin.data<int64_t>()[e] = next;
    for (int64_t r = 0; r < R; ++r) {
      const auto at = static_cast<size_t>(r * E + e);
      if (by_source) {
        blocks.groups.source_begin.data<int64_t>()[at] = next;
        blocks.groups.source_count.data<int64_t>()[at] = fp8_blocks(count[at]);
      }
      for (int64_t row = 0; row < count[at]; row += kFp8Block, ++next) {
        assert(next < blocks.most);
        table[next * 2] = static_cast<int32_t>(begin[at] + row);
        table[next * 2 + 1] = static_cast<int32_t>(std::min(kFp8Block, count[at] - row));
      }
    }
    blocks.groups.count.data<int64_t>()[e] = next - blocks.groups.begin.data<int64_t>()[e];
  }
  std::fill(table + next * 2, table + blocks.most * 2, 0);
}

void fp8_quantise(Stream& stream, const Fp8Rows& rows, const Fp8Columns& columns, const Tensor& x,
                  const Fp8RowBlocks& blocks, const Fp8Given& given) {
  const int64_t across = fp8_blocks(x.size(1)), M = given.rows.capacity(x);
  const float* const largest = given.largest.defined() ? given.largest.data<float>() : nullptr;
  const Fp8Format format = rows.values.defined() ? rows.format : columns.format;
  dispatch_floating(x.dtype(), [&]<class T>() {
    stream.pool().run(blocks.most * across, [&](int64_t task) {
      const int64_t block = task / across, column = task % across * kFp8Block;
      const RowRange range = rows_of_block(blocks, block, M);
      if (range.rows == 0) return;
      QuantisedTile tile;
      tile.read(rows_from<T>(x, given.rows, range.first, column), range.rows, std::min(kFp8Block, x.size(1) - column));
      const Scaling scaling{format, largest ? largest + group_of(blocks, block) : nullptr};
      if (rows.values.defined()) write_rows(rows, tile, range.first, column / kFp8Block, scaling);
      if (columns.values.defined()) write_columns(columns, tile, block, column, scaling);
    });
  });
}

namespace {

// amax[g] = the larger of itself and the magnitudes, as bits, that the tasks of group g found; group(task) gives g.
template <class Group>
void raise(const Tensor& amax, const std::vector<uint32_t>& found, const Group& group) {
  auto* to = reinterpret_cast<uint32_t*>(amax.raw());
  for (size_t task = 0; task < found.size(); ++task)
    if (found[task] > 0) {
      uint32_t& most = to[group(static_cast<int64_t>(task))];
      most = std::max(most, found[task]);
    }
}

}  // namespace

void fp8_amax(Stream& stream, const Tensor& amax, const Tensor& x, const Fp8RowBlocks& blocks, const RowIndex& x_rows) {
  const int64_t K = x.size(1), M = x_rows.capacity(x);
  std::vector<uint32_t> found(static_cast<size_t>(blocks.most), 0);
  dispatch_floating(x.dtype(), [&]<class T>() {
    stream.pool().run(blocks.most, [&](int64_t block) {
      const RowRange range = rows_of_block(blocks, block, M);
      const auto row = rows_from<T>(x, x_rows, range.first, 0);
      uint32_t& most = found[static_cast<size_t>(block)];
      for (int64_t i = 0; i < range.rows; ++i)
        for (int64_t k = 0; k < K; ++k) most = std::max(most, magnitude_of(static_cast<float>(row(i)[k])));
    });
  });
  raise(amax, found, [&](int64_t block) { return group_of(blocks, block); });
}

void fp8_weight_amax(Stream& stream, const Tensor& amax, const Tensor& w) {
  const int64_t rows = w.size(0) * w.size(1), K = w.size(2);
  std::vector<uint32_t> found(static_cast<size_t>(rows), 0);
  dispatch_floating(w.dtype(), [&]<class T>() {
    stream.pool().run(rows, [&](int64_t row) {
      const T* const at = w.data<T>() + row * K;
      uint32_t& most = found[static_cast<size_t>(row)];
      for (int64_t k = 0; k < K; ++k) most = std::max(most, magnitude_of(static_cast<float>(at[k])));
    });
  });
  raise(amax, found, [&](int64_t row) { return row / w.size(1); });
}

void fp8_delay(Stream&, const Tensor& amax, const Tensor& seen, const Tensor& reference) {
  const int64_t E = reference.elements(), R = amax.elements() / E;
  for (int64_t e = 0; e < E; ++e)
    for (int64_t r = 0; r < R; ++r) {
      float& own = amax.data<float>()[e * R + r];
      if (seen.defined()) {
        float& most = seen.data<float>()[e];
        if (std::bit_cast<uint32_t>(own) > std::bit_cast<uint32_t>(most)) most = own;
      }
      if (const float given = reference.data<float>()[e]; given > 0) own = given;
    }
}

void fp8_next_references(Stream&, const Fp8History& of, const Tensor& step, double factor) {
  const double* const values = step.data<double>();
  if (values[step_value::skip] != 0) return;
  const int64_t n = of.amax.elements(), H = of.history.defined() ? of.history.size(0) : 0;
  float* const history = H > 0 ? of.history.data<float>() : nullptr;
  const int64_t now = H > 0 ? (static_cast<int64_t>(values[step_value::update]) - 1) % H : 0;
  for (int64_t i = 0; i < n; ++i) {
    float most = of.amax.data<float>()[i];
    if (H > 0) history[now * n + i] = most;
    for (int64_t row = 0; row < H; ++row) most = std::max(most, history[row * n + i]);
    const float next = static_cast<float>(factor) * most;
    if (next > 0 && next <= std::numeric_limits<float>::max()) of.reference.data<float>()[i] = next;
  }
}

void fp8_quantise_weights(Stream& stream, const Fp8Weights& to, const Tensor& w, const Tensor& largest) {
  const int64_t down = to.scales.size(1), across = to.scales.size(2);
  dispatch_floating(w.dtype(), [&]<class T>() {
    stream.pool().run(w.size(0) * down * across, [&](int64_t task) {
      const int64_t expert = task / (down * across), n = task / across % down * kFp8Block,
                    k = task % across * kFp8Block;
      QuantisedTile tile;
      tile.read([&](int64_t i) { return w.data<T>() + expert * w.stride(0) + (n + i) * w.stride(1) + k; },
                std::min(kFp8Block, w.size(1) - n), std::min(kFp8Block, w.size(2) - k));
      write_weights(to, tile, expert, n, k,
                    {Fp8Format::e4m3, largest.defined() ? largest.data<float>() + expert : nullptr});
    });
  });
}

void fp8_product(Stream& stream, const Tensor& y, const Fp8Product& product, const RowGroups& groups) {
  const Tensor &x = product.rows.values, &w = product.matrices();
  const std::vector<int64_t> begin = host_values(groups.begin, 0), count = host_values(groups.count, y.size(0));
  const int64_t M = x.size(0), K = x.size(1), down = product.weights.scales.size(1),
                across = product.weights.scales.size(2);
  const float *row_scales = product.rows.scales.data<float>(), *scales = product.weights.scales.data<float>();
  dispatch_result(y.dtype(), [&]<class T>() {
    for_tiles(stream, count, y.size(1), [&](int64_t e, int64_t m, int64_t n) {
      const int64_t first = begin[static_cast<size_t>(e)];
      const Operand a{codes_of(x) + first * K, K, count[static_cast<size_t>(e)], product.rows.format};
      const Operand b{codes_of(w) + e * w.stride(0), K, w.size(1)};
      multiply_tile(
          y.data<T>() + first * y.stride(0), y.stride(0), Write::overwrite, a, b, K, m, n,
          [&](int64_t i, int64_t block) { return row_scales[block * M + first + i]; },
          [&](int64_t j, int64_t block) {
            const int64_t block_n = product.turned ? block : j / kFp8Block;
            const int64_t block_k = product.turned ? j / kFp8Block : block;
            return scales[(e * down + block_n) * across + block_k];
          });
    });
  });
}

void fp8_weight_gradient(Stream& stream, const Tensor& dw, Write write, const Fp8Columns& dy, const Fp8Columns& x,
                         const RowGroups& groups) {
  const int64_t N = dw.size(1), K = dw.size(2), P = x.values.size(1);
  const std::vector<int64_t> begin = host_values(groups.begin, 0), count = host_values(groups.count, P / kFp8Block);
  const float *dy_scales = dy.scales.data<float>(), *x_scales = x.scales.data<float>();
  std::vector<int64_t> rows(count.size(), N);
  for (size_t e = 0; e < rows.size(); ++e)
    if (write == Write::accumulate && count[e] == 0) rows[e] = 0;  // adding 0 would turn -0 into 0
  dispatch_result(dw.dtype(), [&]<class T>() {
    for_tiles(stream, rows, K, [&](int64_t e, int64_t m, int64_t n) {
      const int64_t first = begin[static_cast<size_t>(e)], blocks = count[static_cast<size_t>(e)];
      multiply_tile(
          dw.data<T>() + e * dw.stride(0), dw.stride(1), write,
          Operand{codes_of(dy.values) + first * kFp8Block, P, N, dy.format},
          Operand{codes_of(x.values) + first * kFp8Block, P, K, x.format}, blocks * kFp8Block, m, n,
          [&](int64_t i, int64_t block) { return dy_scales[(first + block) * N + i]; },
          [&](int64_t j, int64_t block) { return x_scales[(first + block) * K + j]; });
    });
  });
}

}  // namespace witan::kernels::cpu
