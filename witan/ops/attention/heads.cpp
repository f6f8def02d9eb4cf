#include "witan/ops/attention/heads.h"

#include <algorithm>
#include <array>
#include <functional>
#include <string_view>
#include <vector>

#include "witan/kernels/gemm/gemm.h"

namespace witan::ops {
namespace {

using kernels::Transpose;

// Channels of q, k and v.
std::array<int64_t, 3> widths(const HeadSizes& n) {
  return {n.queries * n.head_dim, n.groups * n.head_dim, n.groups * n.value_dim};
}
int64_t packed_width(const HeadSizes& n) {
  const auto [q, k, v] = widths(n);
  return q + k + v;
}

void check(const Var& x, const std::vector<Var>& weights, const Tensor& table, const HeadSizes& n) {
  require<ShapeError>(x.shape().dims() == 3 && x.value().contiguous(),
                      "project_heads: x must be [B, S, D] and contiguous, got ", x.shape());
  require<ShapeError>(weights.size() == 1 || weights.size() == 3, "project_heads: takes one weight or three, got ",
                      weights.size());
  const std::array<int64_t, 3> rows = widths(n);
  for (size_t i = 0; i < weights.size(); ++i) {
    const bool one = weights.size() == 1;
    const Shape expected{one ? packed_width(n) : rows[i], x.size(2)};
    require<ShapeError>(weights[i].shape() == expected && weights[i].dtype() == x.dtype(),
                        "project_heads: the weight of ", std::string_view("qkv").substr(i, one ? 3 : 1), " must be ",
                        x.dtype(), " ", expected, ", got ", weights[i].dtype(), " ", weights[i].shape());
  }
  const Shape angles{x.size(0) * x.size(1), n.rope.dims};
  require<ShapeError>(n.rope.dims == 0 || (table.defined() && table.shape() == angles),
                      "project_heads: the table of angles must be ", angles, ", got ",
                      table.defined() ? table.shape() : Shape{});
}

// The columns of packed rows that belong to q, k or v.
Tensor columns(const Tensor& packed, size_t which, const HeadSizes& n) {
  const std::array<int64_t, 3> of = widths(n);
  return packed.narrow(1, which == 0 ? 0 : which == 1 ? of[0] : of[0] + of[1], of[which]);
}

// packed = x w^T
void project(Stream& stream, const Tensor& packed, const Tensor& x, const std::vector<Tensor>& weights,
             const HeadSizes& n) {
  if (const Tensor all = joined_rows(weights); all.defined())
    return kernels::gemm(stream, packed, Write::overwrite, x, Transpose::no, all, Transpose::yes);
  for (size_t i = 0; i < 3; ++i)
    kernels::gemm(stream, columns(packed, i, n), Write::overwrite, x, Transpose::no, weights[i], Transpose::yes);
}

// dx = dpacked w. On a GPU one product: there an accumulation costs as much as the product does. The CPU sums v, k and
// q one by one, each with the bits of a product of its own.
void project_back(Stream& stream, const Tensor& dx, Write how, const Tensor& dpacked,
                  const std::vector<Tensor>& weights, const HeadSizes& n) {
  const Tensor all = joined_rows(weights);
  if (weights.size() == 1 || (stream.plans_for_cuda() && all.defined()))
    return kernels::gemm(stream, dx, how, dpacked, Transpose::no, all, Transpose::no);
  for (size_t i = 3; i-- > 0;)
    kernels::gemm(stream, dx, i == 2 ? how : Write::accumulate, columns(dpacked, i, n), Transpose::no, weights[i],
                  Transpose::no);
}

struct ProjectionGradient {
  Tensor to;  // undefined: not wanted
  Write how;
};

// dw = dpacked^T x
void write_weights(Stream& stream, const std::vector<ProjectionGradient>& gradients, const Tensor& dpacked,
                   const Tensor& x, const HeadSizes& n) {
  if (gradients.size() == 1)
    return kernels::gemm(stream, gradients[0].to, gradients[0].how, dpacked, Transpose::yes, x, Transpose::no);
  const auto write = [&](size_t i) {
    const auto& [to, how] = gradients[i];
    kernels::gemm(stream, to, how, columns(dpacked, i, n), Transpose::yes, x, Transpose::no);
  };
  if (!std::ranges::all_of(gradients, &Tensor::defined, &ProjectionGradient::to)) {
    for (size_t i = 0; i < 3; ++i)
      if (gradients[i].to.defined()) write(i);
    return;
  }
  const bool alike = gradients[0].how == gradients[1].how && gradients[0].how == gradients[2].how;
  const Tensor all = joined_rows({gradients[0].to, gradients[1].to, gradients[2].to});
  if (alike && all.defined())
    return kernels::gemm(stream, all, gradients[0].how, dpacked, Transpose::yes, x, Transpose::no);
  for (size_t i = 0; i < 3; ++i) write(i);
}

Tensor rotated(Stream& s, const Tensor& x, const Tensor& positions, const kernels::RopeArgs& args) {
  const Tensor y = s.empty_like(x);
  const Tensor table = s.empty({positions.elements(), args.dims}, accumulator(x.dtype()), MemoryTag::workspace);
  kernels::rope(s, y, table, x, positions, args);
  return y;
}

}  // namespace

Tensor project_rows(Stream& stream, const Var& x, const std::vector<Var>& weights, const HeadSizes& sizes) {
  const int64_t tokens = x.size(0) * x.size(1);
  const Tensor packed = stream.empty({tokens, packed_width(sizes)}, x.dtype());
  std::vector<Tensor> values;
  for (const Var& weight : weights) values.push_back(weight.value());
  project(stream, packed, x.value().reshape({tokens, x.size(2)}), values, sizes);
  return packed;
}

ProjectedHeads project_heads(Tape& tape, const Var& x, const std::vector<Var>& weights, const Tensor& table,
                             const HeadSizes& sizes) {
  check(x, weights, table, sizes);
  Stream& s = tape.stream();
  const int64_t B = x.size(0), S = x.size(1), D = x.size(2);
  const std::array<Shape, 3> shapes = {Shape{B, S, sizes.queries, sizes.head_dim},
                                       Shape{B, S, sizes.groups, sizes.head_dim},
                                       Shape{B, S, sizes.groups, sizes.value_dim}};
  const kernels::Heads heads{s.empty(shapes[0], x.dtype()), s.empty(shapes[1], x.dtype()),
                             s.empty(shapes[2], x.dtype())};
  kernels::split_heads(s, heads, project_rows(s, x, weights, sizes), table, sizes.rope);
  const bool trained = std::ranges::any_of(weights, &Var::needs_gradient);
  std::vector<Saved> of_weights;
  for (const Var& weight : weights) of_weights.push_back(tape.save(weight));
  auto backward = [x = tape.slot(x), saved = trained ? tape.save(x) : Saved(), dtype = x.dtype(),
                   of = std::move(of_weights), table = table.defined() ? tape.save(table) : Saved(), sizes, shapes, B,
                   S, D](Backward& b, const std::vector<Tensor>& gradients) {
    Stream& stream = b.stream();
    const auto or_zeros = [&](size_t i) {
      return gradients[i].defined() ? gradients[i] : stream.zeros(shapes[i], dtype);
    };
    const kernels::Heads from{or_zeros(0), or_zeros(1), or_zeros(2)};
    const Tensor dpacked = stream.empty({B * S, packed_width(sizes)}, dtype);
    kernels::merge_heads(stream, dpacked, from, b.value(table), sizes.rope);
    std::vector<ProjectionGradient> gradients_of(of.size());
    const std::function<void(size_t)> write_from = [&](size_t i) {  // all that are wanted, then at once
      if (i == of.size())
        return write_weights(stream, gradients_of, dpacked, b.value(saved).reshape({B * S, D}), sizes);
      if (!b.wants(of[i])) return write_from(i + 1);
      b.write(of[i], [&](const Tensor& to, Write how) {
        gradients_of[i] = {to, how};
        write_from(i + 1);
      });
    };
    if (std::ranges::any_of(of, [&](const Saved& weight) { return b.wants(weight); })) write_from(0);
    b.write(x, [&](const Tensor& dx, Write how) {
      std::vector<Tensor> values;
      for (const Saved& weight : of) values.push_back(b.value(weight));
      project_back(stream, dx.reshape({B * S, D}), how, dpacked, values, sizes);
    });
  };
  std::vector<Var> inputs = {x};
  inputs.insert(inputs.end(), weights.begin(), weights.end());
  const auto vars = tape.record("project_heads", std::vector{heads.q, heads.k, heads.v}, inputs, std::move(backward));
  return {vars[0], vars[1], vars[2]};
}

Var rope(Tape& tape, const Var& x, const Tensor& positions, const kernels::RopeArgs& rope) {
  require<ShapeError>(x.shape().dims() == 4 && x.value().contiguous() && is_floating(x.dtype()),
                      "rope: x must be [B, S, H, hd], floating and contiguous, got ", x.dtype(), " ", x.shape());
  require<ShapeError>(positions.shape() == Shape{x.size(0), x.size(1)} && positions.dtype() == DType::i32,
                      "rope: positions must be [B=", x.size(0), ", S=", x.size(1), "] int32, got ", positions.dtype(),
                      " ", positions.shape());
  require<ShapeError>(rope.base > 0, "rope: base must be positive, got ", rope.base);
  require<ShapeError>(rope.dims > 0 && rope.dims <= x.size(3) && rope.dims % 2 == 0,
                      "rope: an even number of each head's ", x.size(3), " dims must be rotated, got ", rope.dims);
  if (tape.stream().device().kind == Device::Kind::cpu)  // a GPU is not waited for
    for (const int32_t position : positions.span<int32_t>())
      require<DataError>(position >= 0, "rope: a position cannot be negative, got ", position);

  const Tensor y = rotated(tape.stream(), x.value(), positions, rope);
  kernels::RopeArgs args = rope;
  args.inverse = !rope.inverse;
  return tape.record("rope", y, {x},
                     [x = tape.slot(x), positions = tape.save(positions), args](Backward& b, const Tensor& dy) {
                       b.add(x, rotated(b.stream(), dy, b.value(positions), args));
                     });
}

}  // namespace witan::ops
