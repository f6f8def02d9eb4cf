#include <algorithm>
#include <utility>

#include "witan/comm/context.h"
#include "witan/kernels/attention/sequence_pieces.h"
#include "witan/ops/attention/attention.h"

namespace witan::ops {
namespace {

void check_sequence(const char* op, const Var& x, const Var& first) {
  require<ShapeError>(x.shape().dims() == 4, op, ": x must be [B, S, heads, w], got ", x.shape());
  require<ShapeError>(x.size(0) == first.size(0) && x.size(1) == first.size(1) && x.dtype() == first.dtype(), op, ": ",
                      x.dtype(), " ", x.shape(), " is not of the sequences of ", first.dtype(), " ", first.shape());
}

// dx [B, S / n, P, w] of what each rank found, [B, S / n, n, w]: n / P ranks share a head.
Tensor sum_of_shares(Stream& stream, const Tensor& found, const Shape& shape) {
  if (found.shape() == shape) return found;
  const Tensor dx = stream.empty(shape, found.dtype());
  const int64_t rows = shape[0] * shape[1], w = shape[3];
  kernels::sum_shares(stream, dx.reshape({rows, shape[2] * w}), found.reshape({rows, found.size(2) * w}), w);
  return dx;
}

// dx [B, S / n, sum of P w] of what each rank found, [B, S / n, sum of n Q w].
Tensor sum_of_shares(Stream& stream, const Tensor& found, const HeadSections& sections, int64_t n) {
  if (std::ranges::all_of(sections, [&](const HeadSection& of) { return of.heads % n == 0; })) return found;
  int64_t channels = 0, first = 0, first_found = 0;
  for (const HeadSection& of : sections) channels += of.channels();
  const Tensor dx = stream.empty(found.shape().with(2, channels), found.dtype());
  const int64_t rows = dx.size(0) * dx.size(1);
  for (const HeadSection& of : sections) {
    const int64_t shares = n * of.own_heads(n) * of.width;
    kernels::sum_shares(stream, dx.reshape({rows, channels}).narrow(1, first, of.channels()),
                        found.reshape({rows, found.size(2)}).narrow(1, first_found, shares), of.width);
    first += of.channels(), first_found += shares;
  }
  return dx;
}

}  // namespace

std::vector<Var> gather_sequence(Tape& tape, const std::vector<Var>& xs, Group& context) {
  require<ShapeError>(!xs.empty() && xs.size() <= kernels::kMostPieceCopies, "gather_sequence: 1 to ",
                      kernels::kMostPieceCopies, " tensors, got ", xs.size());
  std::vector<Tensor> parts;
  for (const Var& x : xs) {
    check_sequence("gather_sequence", x, xs.front());
    parts.push_back(x.value());
  }
  if (context.size() == 1) return xs;
  std::vector<Slot> slots;
  std::vector<Shape> shapes;
  for (const Var& x : xs) {
    slots.push_back(tape.slot(x));
    shapes.push_back(x.shape());
  }
  std::vector<Tensor> wholes = exchange_to_heads(tape.stream(), parts, context);
  parts.clear();
  std::vector<Shape> of_wholes;
  for (const Tensor& whole : wholes) of_wholes.push_back(whole.shape());
  const DType dtype = wholes.front().dtype();
  return tape.record("gather_sequence", std::move(wholes), xs,
                     [slots, shapes, of_wholes, dtype, &context](Backward& b, const std::vector<Tensor>& gradients) {
                       std::vector<Tensor> dys = gradients;
                       for (size_t i = 0; i < dys.size(); ++i)  // all ranks send the same tensors
                         if (!dys[i].defined()) dys[i] = b.stream().zeros(of_wholes[i], dtype);
                       const std::vector<Tensor> found = exchange_to_positions(b.stream(), dys, context);
                       dys.clear();
                       for (size_t i = 0; i < found.size(); ++i)
                         b.add(slots[i], sum_of_shares(b.stream(), found[i], shapes[i]));
                     });
}

Var gather_sequence(Tape& tape, const Var& x, const HeadSections& sections, Group& context) {
  require<ShapeError>(x.shape().dims() == 3 && !sections.empty() && sections.size() <= kernels::kMostPieceCopies,
                      "gather_sequence: 1 to ", kernels::kMostPieceCopies, " sections of x [B, S, C], got ",
                      sections.size(), " of ", x.shape());
  if (context.size() == 1) return x;
  const Tensor whole = exchange_to_heads(tape.stream(), x.value(), sections, context);
  return tape.record("gather_sequence", whole, {x},
                     [x = tape.slot(x), sections, &context](Backward& b, const Tensor& dy) {
                       const Tensor found = exchange_to_positions(b.stream(), dy, sections, context);
                       b.add(x, sum_of_shares(b.stream(), found, sections, context.size()));
                     });
}

Var scatter_sequence(Tape& tape, const Var& x, Group& context) {
  check_sequence("scatter_sequence", x, x);
  if (context.size() == 1) return x;
  const Tensor part = exchange_to_positions(tape.stream(), {x.value()}, context).front();
  return tape.record("scatter_sequence", part, {x}, [x = tape.slot(x), &context](Backward& b, const Tensor& dy) {
    b.add(x, exchange_to_heads(b.stream(), {dy}, context).front());
  });
}

}  // namespace witan::ops
