#include "witan/ops/linear_attention/earlier_tokens.h"

#include <algorithm>

#include "witan/comm/earlier_tokens.h"
#include "witan/kernels/common/blocks.h"
#include "witan/kernels/pointwise/elementwise.h"

namespace witan::ops {
namespace {

// Some tokens of chunks as columns: x [2 B, C, I] -> [2 B, C I].
Tensor by_chunk(const Tensor& x, int64_t chunks) {
  return x.reshape({chunks, chunks > 0 ? x.elements() / chunks : 0});
}

// part [B, 2 C, I] -> [2 B, count + C, I]
Tensor extended(Stream& stream, const Tensor& part, int64_t count, Group& context) {
  const int64_t chunks = 2 * part.size(0), C = part.size(1) / 2, I = part.size(2);
  const Tensor earlier = earlier_tokens(stream, part, count, context);
  const Tensor y = stream.empty({chunks, count + C, I}, part.dtype());
  kernels::copy_columns(stream, by_chunk(y, chunks), by_chunk(earlier, chunks), {0, 0, count * I});
  kernels::copy_columns(stream, by_chunk(y, chunks), by_chunk(part, chunks), {count * I, 0, C * I});
  return y;
}

}  // namespace

Var with_earlier_tokens(Tape& tape, const Var& x, int64_t count, Group& context) {
  require<ShapeError>(x.shape().dims() == 3 && x.size(1) % 2 == 0 && x.value().contiguous() && count > 0,
                      "with_earlier_tokens: x must be contiguous [B, 2 C, I], got ", x.shape());
  const Tensor y = extended(tape.stream(), x.value(), count, context);
  return tape.record(
      "with_earlier_tokens", y, {x},
      [x = tape.slot(x), shape = x.shape(), count, &context](Backward& b, const Tensor& dy) {
        Stream& stream = b.stream();
        const int64_t chunks = 2 * shape[0], C = shape[1] / 2, I = shape[2], sent = std::min(count, C);
        const Tensor earlier = stream.empty({chunks, count, I}, dy.dtype()), dx = stream.empty(shape, dy.dtype());
        kernels::copy_columns(stream, by_chunk(earlier, chunks), by_chunk(dy, chunks), {0, 0, count * I});
        kernels::copy_columns(stream, by_chunk(dx, chunks), by_chunk(dy, chunks), {0, count * I, C * I});
        const Tensor sum = by_chunk(sum_of_earlier_tokens(stream, earlier, C, context), chunks),
                     last = stream.empty_like(sum);
        kernels::copy_columns(stream, last, by_chunk(dx, chunks), {0, (C - sent) * I, sent * I});
        kernels::add(stream, sum, sum, last);
        kernels::copy_columns(stream, by_chunk(dx, chunks), sum, {(C - sent) * I, 0, sent * I});
        b.add(x, dx);
      });
}

Var without_earlier_tokens(Tape& tape, const Var& y, int64_t count) {
  require<ShapeError>(y.shape().dims() == 3 && y.size(0) % 2 == 0 && y.size(1) > count && y.value().contiguous(),
                      "without_earlier_tokens: y must be contiguous [2 B, ", count, " + C, I], got ", y.shape());
  Stream& s = tape.stream();
  const int64_t chunks = y.size(0), C = y.size(1) - count, I = y.size(2);
  const Tensor x = s.empty({chunks / 2, 2 * C, I}, y.dtype());
  kernels::copy_columns(s, by_chunk(x, chunks), by_chunk(y.value(), chunks), {0, count * I, C * I});
  return tape.record(
      "without_earlier_tokens", x, {y},
      [y = tape.slot(y), shape = y.shape(), count, chunks, C, I](Backward& b, const Tensor& dx) {
        const Tensor dy = b.stream().zeros(shape, dx.dtype());
        kernels::copy_columns(b.stream(), by_chunk(dy, chunks), by_chunk(dx, chunks), {count * I, 0, C * I});
        b.add(y, dy);
      });
}

Tensor ids_with_earlier_tokens(Stream& stream, const Tensor& ids, int64_t count, Group& context) {
  const Tensor y = extended(stream, ids.reshape({ids.size(0), ids.size(1), 1}), count, context);
  return y.reshape({y.size(0), y.size(1)});
}

}  // namespace witan::ops
