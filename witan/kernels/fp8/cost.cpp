#include <algorithm>
#include <cassert>

#include "witan/kernels/fp8/fp8.h"
#include "witan/kernels/pointwise/activation.h"

namespace witan::kernels {
namespace {

double doubled(int64_t value) {
  return static_cast<double>(value);
}

// The rows of all groups together, for which costs are counted.
int64_t rows_of(const Fp8RowBlocks& blocks, int64_t capacity) {
  return blocks.groups.begin.defined() ? blocks.groups.rows_of(capacity) : capacity;
}

int64_t copies_of(const Fp8Rows& rows, const Fp8Columns& columns) {
  return (rows.values.defined() ? 1 : 0) + (columns.values.defined() ? 1 : 0);
}

// The cost of a product of this many rows with w [E, N, K], whose operands have 1 byte per element.
Cost product_cost(int64_t rows, const Tensor& matrices, int64_t out_bytes) {
  const double out = doubled(matrices.size(1)), in = doubled(matrices.size(2));
  return {2 * doubled(rows) * out * in, doubled(rows) * (in + out * doubled(out_bytes)) + bytes_of(matrices)};
}

}  // namespace

Fp8Rows Fp8Rows::empty(Stream& stream, int64_t M, int64_t K, Fp8Format format) {
  return {stream.empty({M, K}, DType::f8), stream.empty({fp8_blocks(K), M}, DType::f32), format};
}

Fp8RowBlocks Fp8RowBlocks::empty(Stream& stream, const RowGroups& groups, int64_t capacity) {
  if (!groups.begin.defined()) return {{}, {}, fp8_blocks(capacity)};
  const int64_t E = groups.experts(), R = groups.sources();
  // Each non-empty group may end with a partly filled block.
  const int64_t most = capacity / kFp8Block + std::min(E * R, capacity);
  Fp8RowBlocks out{{stream.empty({E}, DType::i64), stream.empty({E}, DType::i64), {}, {}, groups.expected_rows},
                   stream.empty({most, 2}, DType::i32),
                   most};
  if (!groups.source_count.defined()) return out;
  out.groups.source_begin = stream.empty({R, E}, DType::i64);
  out.groups.source_count = stream.empty({R, E}, DType::i64);
  return out;
}

Fp8Columns Fp8Columns::empty(Stream& stream, const Fp8RowBlocks& blocks, int64_t K, Fp8Format format) {
  return {stream.empty({K, blocks.most * kFp8Block}, DType::f8), stream.empty({blocks.most, K}, DType::f32), format};
}

void fp8_row_blocks(Stream& stream, const Fp8RowBlocks& blocks, const RowGroups& groups) {
  if (!groups.begin.defined()) return;
  assert(blocks.groups.experts() == groups.experts() && blocks.groups.sources() == groups.sources());
  const Cost cost{0, bytes_of(blocks.table, groups.begin, groups.count, blocks.groups.begin, blocks.groups.count)};
  WITAN_LAUNCH(stream, fp8_row_blocks, cost, blocks, groups);
}

void fp8_quantise(Stream& stream, const Fp8Rows& rows, const Fp8Columns& columns, const Tensor& x,
                  const Fp8RowBlocks& blocks, const Fp8Given& given) {
  const int64_t M = given.rows.capacity(x), K = x.size(1), copies = copies_of(rows, columns);
  assert(x.shape().dims() == 2 && x.stride(1) == 1 && K % kFp8Multiple == 0 && copies > 0);
  assert(copies == 1 || rows.format == columns.format);
  assert(!given.largest.defined() || given.largest.elements() == blocks.number());
  assert(!rows.values.defined() || rows.values.shape() == Shape({M, K}));
  assert(!columns.values.defined() || columns.values.shape() == Shape({K, blocks.most * kFp8Block}));
  const double numbers = doubled(rows_of(blocks, M) * K);
  const Cost cost{numbers * doubled(copies), numbers * doubled(size_of(x.dtype()) + copies)};
  if (x.elements() == 0 || M == 0) return;
  WITAN_LAUNCH(stream, fp8_quantise, cost, rows, columns, x, blocks, given);
}

void fp8_amax(Stream& stream, const Tensor& amax, const Tensor& x, const Fp8RowBlocks& blocks, const RowIndex& x_rows) {
  const int64_t M = x_rows.capacity(x);
  assert(x.shape().dims() == 2 && x.stride(1) == 1 && amax.elements() == blocks.number());
  const double numbers = doubled(rows_of(blocks, M) * x.size(1));
  if (x.elements() == 0 || M == 0) return;
  WITAN_LAUNCH(stream, fp8_amax, (Cost{numbers, numbers * doubled(size_of(x.dtype()))}), amax, x, blocks, x_rows);
}

void fp8_weight_amax(Stream& stream, const Tensor& amax, const Tensor& w) {
  assert(w.shape().dims() == 3 && w.contiguous() && amax.elements() == w.size(0));
  if (w.elements() == 0) return;
  WITAN_LAUNCH(stream, fp8_weight_amax, (Cost{doubled(w.elements()), bytes_of(w)}), amax, w);
}

void fp8_delay(Stream& stream, const Tensor& amax, const Tensor& seen, const Tensor& reference) {
  assert(reference.elements() > 0 && amax.elements() % reference.elements() == 0);
  assert(!seen.defined() || seen.elements() == reference.elements());
  WITAN_LAUNCH(stream, fp8_delay, (Cost{0, 2 * bytes_of(amax, seen) + bytes_of(reference)}), amax, seen, reference);
}

void fp8_next_references(Stream& stream, const Fp8History& of, const Tensor& step, double factor) {
  assert(of.reference.elements() == of.amax.elements() && of.reference.contiguous() && of.amax.contiguous());
  assert(!of.history.defined() || of.history.elements() == of.history.size(0) * of.amax.elements());
  const Cost cost{0, bytes_of(of.history, of.amax) + 2 * bytes_of(of.reference)};
  WITAN_LAUNCH(stream, fp8_next_references, cost, of, step, factor);
}

void fp8_quantise_swiglu(Stream& stream, const Fp8Rows& rows, const Fp8Columns& columns, const Tensor& h,
                         const Tensor& s, const RowGroups& groups, const Fp8RowBlocks& blocks) {
  const int64_t M = h.size(0), F = h.size(1) / 2;
  if (!stream.plans_for_cuda()) {
    const Tensor y = stream.empty({M, F}, h.dtype());
    swiglu_forward(stream, y, h, s, groups);
    return fp8_quantise(stream, rows, columns, y, blocks);
  }
  const int64_t copies = copies_of(rows, columns);
  assert(h.contiguous() && F % kFp8Multiple == 0 && copies > 0);
  const double numbers = doubled(rows_of(blocks, M) * F);
  if (h.elements() == 0) return;
  charge(stream, "fp8_quantise_swiglu",
         {numbers * doubled(5 + copies), numbers * doubled(2 * size_of(h.dtype()) + copies)},
         [&] { WITAN_CALL_CUDA(fp8_quantise_swiglu, stream, rows, columns, h, s, groups, blocks); });
}

void fp8_quantise_swiglu_backward(Stream& stream, const Fp8Rows& rows, const Fp8Columns& columns,
                                  const Fp8SwigluGradient& of, const RowGroups& groups, const Fp8RowBlocks& blocks) {
  const int64_t M = of.h.size(0), F = of.h.size(1) / 2, copies = copies_of(rows, columns);
  assert(copies > 0);
  // A block of columns that contained both gate and up would belong to two tiles.
  if (!stream.plans_for_cuda() || F % kFp8Block != 0) {
    const Tensor dh = stream.empty(of.h.shape(), of.h.dtype());
    swiglu_backward(stream, dh, of.ds, of.dy, of.h, of.s, groups);
    return fp8_quantise(stream, rows, columns, dh, blocks);
  }
  assert(of.h.contiguous() && of.dy.contiguous() && of.dy.shape() == Shape({M, F}));
  const Tensor dots = of.ds.defined() ? stream.empty({fp8_blocks(F), M}, DType::f32) : Tensor();
  const double numbers = doubled(rows_of(blocks, M) * F);
  if (of.h.elements() == 0) return;
  charge(stream, "fp8_quantise_swiglu_backward",
         {numbers * doubled(13 + 2 * copies), numbers * doubled(3 * size_of(of.h.dtype()) + 2 * copies)},
         [&] { WITAN_CALL_CUDA(fp8_quantise_swiglu_backward, stream, rows, columns, of, dots, blocks); });
}

void fp8_quantise_weights(Stream& stream, const Fp8Weights& to, const Tensor& w, const Tensor& largest) {
  assert(w.shape().dims() == 3 && w.contiguous() && w.size(1) % kFp8Multiple == 0 && w.size(2) % kFp8Multiple == 0);
  assert(to.scales.shape() == Shape({w.size(0), fp8_blocks(w.size(1)), fp8_blocks(w.size(2))}));
  const Cost cost{doubled(w.elements()), bytes_of(w, to.values, to.transposed, to.scales)};
  if (w.elements() == 0) return;
  assert(!largest.defined() || largest.elements() == w.size(0));
  WITAN_LAUNCH(stream, fp8_quantise_weights, cost, to, w, largest);
}

void fp8_product(Stream& stream, const Tensor& y, const Fp8Product& product, const RowGroups& groups) {
  const Tensor& x = product.rows.values;
  assert(x.size(0) == y.size(0) && x.size(1) == product.matrices().size(2) && y.stride(1) == 1);
  assert(y.size(1) == product.matrices().size(1) && (y.dtype() == DType::f32 || y.dtype() == DType::bf16));
  assert(groups.begin.defined() ? groups.experts() == product.matrices().size(0) : product.matrices().size(0) == 1);
  const int64_t rows = groups.begin.defined() ? groups.rows_of(y.size(0)) : y.size(0);
  const Cost cost = product_cost(rows, product.matrices(), size_of(y.dtype()));
  if (y.elements() == 0) return;
  WITAN_LAUNCH(stream, fp8_product, cost, y, product, groups);
}

void fp8_weight_gradient(Stream& stream, const Tensor& dw, Write write, const Fp8Columns& dy, const Fp8Columns& x,
                         const RowGroups& groups) {
  assert(dw.shape().dims() == 3 && dw.size(1) == dy.values.size(0) && dw.size(2) == x.values.size(0));
  assert(dy.values.size(1) == x.values.size(1) && (dw.dtype() == DType::f32 || dw.dtype() == DType::bf16));
  const int64_t rows = groups.begin.defined() ? groups.rows_of(x.values.size(1)) : x.values.size(1);
  const double N = doubled(dw.size(1)), K = doubled(dw.size(2));
  const Cost cost{2 * doubled(rows) * N * K,
                  doubled(rows) * (N + K) + bytes_of(dw) * (write == Write::accumulate ? 2 : 1)};
  if (dw.elements() == 0) return;
  WITAN_LAUNCH(stream, fp8_weight_gradient, cost, dw, write, dy, x, groups);
}

}  // namespace witan::kernels
