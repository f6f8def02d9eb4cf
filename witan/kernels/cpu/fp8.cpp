#include "witan/kernels/fp8.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <vector>

#include "witan/base/threads.h"
#include "witan/kernels/cpu/store.h"
#include "witan/kernels/fp8_scale.h"

namespace witan::kernels::cpu {
namespace {

using Numbers = std::array<float, kFp8Block>;

uint32_t magnitude_of(float value) {
  return std::bit_cast<uint32_t>(value) & 0x7FFFFFFFu;
}

// At most 128 rows by 128 columns of a matrix; those that do not exist are zeros.
struct QuantisedTile {
  int64_t rows = 0, columns = 0;
  std::array<Numbers, kFp8Block> at;

  // row(i): where the columns of its i-th row begin.
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
};

struct RowRange {
  int64_t first, rows;
};
RowRange rows_of_block(const Fp8RowBlocks& blocks, int64_t block, int64_t M) {
  if (!blocks.table.defined()) return {block * kFp8Block, std::min(kFp8Block, M - block * kFp8Block)};
  const int32_t* entry = blocks.table.data<int32_t>() + block * 2;
  return {entry[0], entry[1]};
}

void write_rows(const Fp8Rows& to, const QuantisedTile& tile, int64_t row, int64_t block) {
  const int64_t M = to.values.size(0), K = to.values.size(1);
  for (int64_t i = 0; i < tile.rows; ++i) {
    const Fp8Scale scale = fp8_scale(tile.largest_of_row(i));
    e4m3* out = to.values.data<e4m3>() + (row + i) * K + block * kFp8Block;
    for (int64_t j = 0; j < tile.columns; ++j) out[j] = e4m3(tile(i, j) * scale.inverse);
    to.scales.data<float>()[block * M + row + i] = scale.scale;
  }
}

void write_columns(const Fp8Columns& to, const QuantisedTile& tile, int64_t row_block, int64_t column) {
  const int64_t K = to.values.size(0), P = to.values.size(1);
  for (int64_t j = 0; j < tile.columns; ++j) {
    const Fp8Scale scale = fp8_scale(tile.largest_of_column(j));
    e4m3* out = to.values.data<e4m3>() + (column + j) * P + row_block * kFp8Block;
    for (int64_t i = 0; i < kFp8Block; ++i) out[i] = e4m3((i < tile.rows ? tile(i, j) : 0.0F) * scale.inverse);
    to.scales.data<float>()[row_block * K + column + j] = scale.scale;
  }
}

void write_weights(const Fp8Weights& to, const QuantisedTile& tile, int64_t expert, int64_t n, int64_t k) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < tile.rows; ++i) largest = std::max(largest, tile.largest_of_row(i));
  const Fp8Scale scale = fp8_scale(largest);
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

// An operand of a product whose sum runs over the last dim: where each line of it begins.
struct Lines {
  const e4m3* first;
  int64_t stride, count;

  Numbers numbers(int64_t line, int64_t from, int64_t size) const {
    Numbers out{};
    for (int64_t k = 0; k < size; ++k)
      out[static_cast<size_t>(k)] = static_cast<float>(first[line * stride + from + k]);
    return out;
  }
};

constexpr int64_t kTileLines = 16, kTileColumns = 64;

// to[i, j] (=|+=) sum over blocks of scale_a(i, block) scale_b(j, block) sum_k a[i,k] b[j,k], for one tile.
template <class T, class ScaleA, class ScaleB>
void multiply_tile(T* to, int64_t stride, Write write, const Lines& a, const Lines& b, int64_t steps, int64_t line,
                   int64_t column, const ScaleA& scale_a, const ScaleB& scale_b) {
  const int64_t lines = std::min(kTileLines, a.count - line), columns = std::min(kTileColumns, b.count - column);
  std::array<std::array<float, kTileColumns>, kTileLines> sums{};
  std::array<Numbers, kTileLines> left;
  for (int64_t block = 0; block < fp8_blocks(steps); ++block) {
    const int64_t from = block * kFp8Block, size = std::min(kFp8Block, steps - from);
    for (int64_t i = 0; i < lines; ++i) left[static_cast<size_t>(i)] = a.numbers(line + i, from, size);
    for (int64_t j = 0; j < columns; ++j) {
      const Numbers right = b.numbers(column + j, from, size);
      const float of_column = scale_b(column + j, block);
      for (int64_t i = 0; i < lines; ++i) {
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (size_t k = 0; k < static_cast<size_t>(kFp8Block); ++k) sum += left[static_cast<size_t>(i)][k] * right[k];
        sums[static_cast<size_t>(i)][static_cast<size_t>(j)] += sum * (scale_a(line + i, block) * of_column);
      }
    }
  }
  for (int64_t i = 0; i < lines; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      T& out = to[(line + i) * stride + column + j];
      const float before = write == Write::accumulate ? static_cast<float>(out) : 0.0F;
      store(out, before + sums[static_cast<size_t>(i)][static_cast<size_t>(j)]);
    }
}

// A task for each tile of each expert's result: body(expert, line, column).
template <class Body>
void for_tiles(Stream& stream, const std::vector<int64_t>& lines, int64_t columns, const Body& body) {
  std::vector<int64_t> before(lines.size() + 1, 0);
  const int64_t across = (columns + kTileColumns - 1) / kTileColumns;
  for (size_t e = 0; e < lines.size(); ++e)
    before[e + 1] = before[e] + (lines[e] + kTileLines - 1) / kTileLines * across;
  stream.pool().run(before.back(), [&](int64_t task) {
    const auto e = static_cast<size_t>(std::upper_bound(before.begin(), before.end(), task) - before.begin()) - 1;
    const int64_t local = task - before[e];
    body(static_cast<int64_t>(e), local / across * kTileLines, local % across * kTileColumns);
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
                  const Fp8RowBlocks& blocks, const RowIndex& x_rows) {
  const int64_t across = fp8_blocks(x.size(1)), M = x_rows.capacity(x);
  const int64_t* const index = x_rows.defined() ? x_rows.index.data<int64_t>() : nullptr;
  dispatch_floating(x.dtype(), [&]<class T>() {
    stream.pool().run(blocks.most * across, [&](int64_t task) {
      const int64_t block = task / across, column = task % across * kFp8Block;
      const RowRange range = rows_of_block(blocks, block, M);
      if (range.rows == 0) return;
      const auto row = [&](int64_t i) {
        const int64_t at = index ? index[range.first + i] / x_rows.divisor : range.first + i;
        return x.data<T>() + at * x.stride(0) + column;
      };
      QuantisedTile tile;
      tile.read(row, range.rows, std::min(kFp8Block, x.size(1) - column));
      if (rows.values.defined()) write_rows(rows, tile, range.first, column / kFp8Block);
      if (columns.values.defined()) write_columns(columns, tile, block, column);
    });
  });
}

void fp8_quantise_weights(Stream& stream, const Fp8Weights& to, const Tensor& w) {
  const int64_t down = to.scales.size(1), across = to.scales.size(2);
  dispatch_floating(w.dtype(), [&]<class T>() {
    stream.pool().run(w.size(0) * down * across, [&](int64_t task) {
      const int64_t expert = task / (down * across), n = task / across % down * kFp8Block,
                    k = task % across * kFp8Block;
      QuantisedTile tile;
      tile.read([&](int64_t i) { return w.data<T>() + expert * w.stride(0) + (n + i) * w.stride(1) + k; },
                std::min(kFp8Block, w.size(1) - n), std::min(kFp8Block, w.size(2) - k));
      write_weights(to, tile, expert, n, k);
    });
  });
}

void fp8_product(Stream& stream, const Tensor& y, const Fp8Product& product, const RowGroups& groups) {
  const Tensor &x = product.rows.values, &w = product.matrices();
  const std::vector<int64_t> begin = host_values(groups.begin, 0), count = host_values(groups.count, y.size(0));
  const int64_t M = x.size(0), steps = x.size(1), down = product.weights.scales.size(1),
                across = product.weights.scales.size(2);
  const float *row_scales = product.rows.scales.data<float>(), *scales = product.weights.scales.data<float>();
  dispatch_result(y.dtype(), [&]<class T>() {
    for_tiles(stream, count, y.size(1), [&](int64_t e, int64_t line, int64_t column) {
      const int64_t first = begin[static_cast<size_t>(e)];
      const Lines a{x.data<e4m3>() + first * steps, steps, count[static_cast<size_t>(e)]};
      const Lines b{w.data<e4m3>() + e * w.stride(0), steps, w.size(1)};
      multiply_tile(
          y.data<T>() + first * y.stride(0), y.stride(0), Write::overwrite, a, b, steps, line, column,
          [&](int64_t i, int64_t block) { return row_scales[block * M + first + i]; },
          [&](int64_t j, int64_t block) {
            const int64_t n = product.turned ? block : j / kFp8Block, k = product.turned ? j / kFp8Block : block;
            return scales[(e * down + n) * across + k];
          });
    });
  });
}

void fp8_weight_gradient(Stream& stream, const Tensor& dw, Write write, const Fp8Columns& dy, const Fp8Columns& x,
                         const RowGroups& groups) {
  const int64_t N = dw.size(1), K = dw.size(2), P = x.values.size(1);
  const std::vector<int64_t> begin = host_values(groups.begin, 0), count = host_values(groups.count, P / kFp8Block);
  const float *dy_scales = dy.scales.data<float>(), *x_scales = x.scales.data<float>();
  std::vector<int64_t> lines(count.size(), N);
  for (size_t e = 0; e < lines.size(); ++e)
    if (write == Write::accumulate && count[e] == 0) lines[e] = 0;  // not even -0 becomes 0
  dispatch_result(dw.dtype(), [&]<class T>() {
    for_tiles(stream, lines, K, [&](int64_t e, int64_t line, int64_t column) {
      const int64_t first = begin[static_cast<size_t>(e)], blocks = count[static_cast<size_t>(e)];
      multiply_tile(
          dw.data<T>() + e * dw.stride(0), dw.stride(1), write, Lines{dy.values.data<e4m3>() + first * kFp8Block, P, N},
          Lines{x.values.data<e4m3>() + first * kFp8Block, P, K}, blocks * kFp8Block, line, column,
          [&](int64_t i, int64_t block) { return dy_scales[(first + block) * N + i]; },
          [&](int64_t j, int64_t block) { return x_scales[(first + block) * K + j]; });
    });
  });
}

}  // namespace witan::kernels::cpu
