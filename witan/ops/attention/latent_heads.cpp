#include <vector>

#include "witan/kernels/attention/heads.h"
#include "witan/kernels/common/blocks.h"
#include "witan/ops/attention/heads.h"

namespace witan::ops {
namespace {

Tensor as_rows(const Tensor& x) {
  const auto [rows, columns] = x.shape().as_rows();
  return x.reshape({rows, columns});
}

void check_latent(const Var& q, const Var& kv, const Var& rope_key, const Tensor& table, const LatentHeadSizes& n) {
  require<ShapeError>(q.shape().dims() == 3 && n.turning % 2 == 0,
                      "latent_heads: q must be [B, S, H (n + R)] with an even R, got ", q.shape(),
                      " and R=", n.turning);
  const int64_t B = q.size(0), S = q.size(1);
  const auto expect = [&](const char* name, const Var& x, int64_t width) {
    require<ShapeError>(x.shape() == Shape{B, S, width} && x.dtype() == q.dtype() && x.value().contiguous(),
                        "latent_heads: ", name, " must be ", q.dtype(), " ", Shape{B, S, width},
                        " and contiguous, got ", x.dtype(), " ", x.shape());
  };
  expect("q", q, n.heads * (n.still + n.turning));
  expect("kv", kv, n.heads * (n.still + n.value));
  expect("rope_key", rope_key, n.turning);
  const Shape angles{B * S, n.turning};
  require<ShapeError>(n.rope.dims == 0 || (n.rope.dims == n.turning && table.defined() && table.shape() == angles),
                      "latent_heads: the table of angles must be ", angles, ", got ",
                      table.defined() ? table.shape() : Shape{});
}

}  // namespace

ProjectedHeads latent_heads(Tape& tape, const Var& q, const Var& kv, const Var& rope_key, const Tensor& table,
                            const LatentHeadSizes& sizes) {
  check_latent(q, kv, rope_key, table, sizes);
  Stream& s = tape.stream();
  const Shape key{q.size(0), q.size(1), sizes.heads, sizes.still + sizes.turning}, value = key.with(3, sizes.value);
  const kernels::Heads heads{s.empty(key, q.dtype()), s.empty(key, q.dtype()), s.empty(value, q.dtype())};
  const Tensor angles = sizes.rope.dims > 0 ? table : Tensor();
  kernels::latent_heads(s, heads, {as_rows(q.value()), as_rows(kv.value()), as_rows(rope_key.value())}, angles,
                        sizes.rope);
  auto backward = [q = tape.slot(q), kv = tape.slot(kv), rope_key = tape.slot(rope_key), rows = q.shape(),
                   kv_rows = kv.shape(), key_rows = rope_key.shape(), key, value, dtype = q.dtype(),
                   table = angles.defined() ? tape.save(angles) : Saved(),
                   rope = sizes.rope](Backward& b, const std::vector<Tensor>& gradients) {
    Stream& stream = b.stream();
    const auto or_zeros = [&](size_t i, const Shape& shape) {
      return gradients[i].defined() ? gradients[i] : stream.zeros(shape, dtype);
    };
    const kernels::Heads from{or_zeros(0, key), or_zeros(1, key), or_zeros(2, value)};
    const Tensor dq = stream.empty(rows, dtype), dkv = stream.empty(kv_rows, dtype),
                 dkey = stream.empty(key_rows, dtype);
    kernels::latent_heads_backward(stream, {as_rows(dq), as_rows(dkv), as_rows(dkey)}, from, b.value(table), rope);
    b.add(q, dq);
    b.add(kv, dkv);
    b.add(rope_key, dkey);
  };
  const auto vars =
      tape.record("latent_heads", std::vector{heads.q, heads.k, heads.v}, {q, kv, rope_key}, std::move(backward));
  return {vars[0], vars[1], vars[2]};
}

std::pair<Var, Var> split_columns(Tape& tape, const Var& x, int64_t first) {
  const int64_t N = x.shape().last(), last_dim = x.shape().dims() - 1;
  require<ShapeError>(first > 0 && first < N && x.value().contiguous(), "split_columns: ", first,
                      " columns and others of x, which must be contiguous, got ", x.shape());
  Stream& s = tape.stream();
  const Shape left = x.shape().with(static_cast<int>(last_dim), first),
              right = x.shape().with(static_cast<int>(last_dim), N - first);
  const std::vector<Tensor> parts = {s.empty(left, x.dtype()), s.empty(right, x.dtype())};
  kernels::copy_columns(s, as_rows(parts[0]), as_rows(x.value()), {0, 0, first});
  kernels::copy_columns(s, as_rows(parts[1]), as_rows(x.value()), {0, first, N - first});
  const auto vars = tape.record("split_columns", parts, {x},
                                [x = tape.slot(x), shape = x.shape(), left, right, dtype = x.dtype(), first, N](
                                    Backward& b, const std::vector<Tensor>& gradients) {
                                  Stream& stream = b.stream();
                                  const Tensor dx = stream.empty(shape, dtype);
                                  const auto part = [&](size_t i, const Shape& of) {
                                    return as_rows(gradients[i].defined() ? gradients[i] : stream.zeros(of, dtype));
                                  };
                                  kernels::copy_columns(stream, as_rows(dx), part(0, left), {0, 0, first});
                                  kernels::copy_columns(stream, as_rows(dx), part(1, right), {first, 0, N - first});
                                  b.add(x, dx);
                                });
  return {vars[0], vars[1]};
}

}  // namespace witan::ops
