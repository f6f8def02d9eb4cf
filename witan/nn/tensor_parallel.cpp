#include "witan/nn/tensor_parallel.h"

#include "witan/autograd/recompute.h"
#include "witan/ops/linear/linear.h"
#include "witan/ops/shape/redistribute.h"

namespace witan {
namespace {

void check(const TensorAxis& axis) {
  require<ShapeError>(axis.residual == Placement::replicate() || axis.residual == Placement::shard(1),
                      "tensor parallel over axis ", axis.group.name(),
                      ": the residual stream must be Replicate or Shard(1), got ", axis.residual);
}

}  // namespace

Var to_sharded_layer(Tape& tape, const Var& x, const TensorAxis& axis) {
  check(axis);
  const Placement whole = Placement::replicate(Placement::Uses::own);
  const auto gather = [&group = axis.group, from = axis.residual, whole](Tape& on, const std::vector<Var>& in) {
    return ops::redistribute(on, in[0], group, from, whole);
  };
  const bool again = axis.keeps == TensorAxis::Keeps::own && axis.residual.kind == Placement::Kind::shard;
  return again && axis.group.size() > 1 ? rematerialised(tape, {x}, gather) : gather(tape, {x});
}

Var from_sharded_layer(Tape& tape, Var y, const TensorAxis& axis, const Var& bias) {
  check(axis);
  y = ops::redistribute(tape, std::move(y), axis.group, Placement::partial(), axis.residual);
  return bias.defined() ? ops::add_bias(tape, y, bias) : y;
}

}  // namespace witan
