#include <cassert>

#include "witan/kernels/grouped/grouped_gemm.h"
#include "witan/ops/experts/grouped_linear.h"
#include "witan/ops/shape/shape.h"

namespace witan::ops {
namespace {

void check(const Var& y, int64_t experts, const Var& bias, const Var& row_weight, int64_t first) {
  require<ShapeError>(y.shape().dims() == 2 && is_floating(y.dtype()), "grouped_bias: y must be [capacity, N], got ",
                      y.dtype(), " ", y.shape());
  require<ShapeError>(bias.shape().dims() == 2 && bias.size(0) == experts && bias.dtype() == y.dtype(),
                      "grouped_bias: bias must be [E=", experts, ", M] ", y.dtype(), ", got ", bias.dtype(), " ",
                      bias.shape());
  require<ShapeError>(first >= 0 && first + bias.size(1) <= y.size(1), "grouped_bias: ", bias.size(1), " columns from ",
                      first, " on are not those of y ", y.shape());
  if (!row_weight.defined()) return;
  require<ShapeError>(row_weight.shape() == Shape{y.size(0)} && row_weight.dtype() == accumulator(y.dtype()),
                      "grouped_bias: row_weight must be [capacity=", y.size(0), "] ", accumulator(y.dtype()), ", got ",
                      row_weight.dtype(), " ", row_weight.shape());
}

}  // namespace

Var grouped_bias(Tape& tape, Var y, const RowGroups& groups, const Var& bias, const Var& row_weight, int64_t first,
                 const ExpertReplicas& replicas) {
  check(y, groups.experts() - replicas.slots(), bias, row_weight, first);
  const bool weighted = row_weight.defined();
  for_stacks(tape.stream(), replicas, groups, bias.value(), [&](const RowGroups& of, const Tensor& stack) {
    kernels::grouped_bias_forward(tape.stream(), y.value(), of, stack, weighted ? row_weight.value() : Tensor(), first);
  });
  std::vector<Var> inputs = {y, bias};
  if (weighted) inputs.push_back(row_weight);
  return tape.record("grouped_bias", y.value(), inputs,
                     [y = tape.slot(y), bias = tape.save(bias), row_weight = weighted ? tape.save(row_weight) : Saved(),
                      weighted, saved = SavedGroups(tape, groups), first,
                      replicas = SavedReplicas(tape, replicas)](Backward& b, const Tensor& dy) {
                       const RowGroups where = saved.value(b);
                       const ExpertReplicas also = replicas.value(b);
                       const Tensor s = weighted ? b.value(row_weight) : Tensor();
                       b.write_parts(bias, [&](const Tensor& dbias, Write how, int64_t part, int64_t parts) {
                         assert(parts == 1 || parts == where.sources());
                         write_stacks(b.stream(), also, where, dbias, how, part, parts,
                                      [&](const RowGroups& of, const Tensor& to, Write write) {
                                        kernels::grouped_bias_backward(b.stream(), to, write, dy, of, s, first);
                                      });
                       });
                       if (weighted && b.wants(row_weight)) {
                         const Tensor ds = b.stream().empty_like(s);
                         for_stacks(b.stream(), also, where, b.value(bias),
                                    [&](const RowGroups& of, const Tensor& stack) {
                                      kernels::grouped_bias_backward_scale(b.stream(), ds, dy, of, stack, first);
                                    });
                         b.add(row_weight, ds);
                       }
                       b.add(y, dy);
                     });
}

}  // namespace witan::ops
