#include <cassert>
#include <utility>

#include "witan/kernels/grouped/grouped_gemm.h"
#include "witan/kernels/moe/dispatch.h"
#include "witan/kernels/pointwise/activation.h"
#include "witan/ops/experts/grouped_linear.h"
#include "witan/ops/shape/shape.h"

namespace witan::ops {
namespace {

// Checks the arguments that the first product does not check.
void check(int64_t capacity, const Var& row_weight, const SwigluExperts& experts) {
  const Var &first = experts.first, &second = experts.second;
  require<ShapeError>(first.shape().dims() == 3 && first.size(1) % 2 == 0,
                      "swiglu_experts: first holds [gate | up] and must be [E, 2F, D], got ", first.shape());
  const int64_t E = first.size(0), F = first.size(1) / 2;
  require<ShapeError>(second.shape().dims() == 3 && second.size(0) == E && second.size(2) == F,
                      "swiglu_experts: second must be [E=", E, ", D, F=", F, "], got ", second.shape());
  require<ShapeError>(second.dtype() == first.dtype(), "swiglu_experts: second is ", second.dtype(), " but first is ",
                      first.dtype());
  if (!row_weight.defined()) return;
  require<ShapeError>(row_weight.shape() == Shape{capacity} && row_weight.dtype() == accumulator(first.dtype()),
                      "swiglu_experts: row_weight must be [capacity=", capacity, "] ", accumulator(first.dtype()),
                      ", got ", row_weight.dtype(), " ", row_weight.shape());
}

// The inputs of the second product.
struct Activated {
  Var h, row_weight;  // [capacity, 2F]; [capacity] or undefined
  Tensor y;           // swiglu(h, row_weight) [capacity, F]
};

Tensor weights_of(const Var& row_weight) {
  return row_weight.defined() ? row_weight.value() : Tensor();
}

// The tensors saved for its backward, which continues through the activation to h.
struct KeptSwiglu {
  Saved h, row_weight, second;
  Saved y;       // empty if it is not needed, or recomputed from h
  Saved source;  // of rows of tokens
  SavedGroups groups;
  SavedReplicas replicas;
  bool weighted, gathers, rematerialise;
  int64_t topk;

  KeptSwiglu(Tape& tape, const Activated& in, const RowGroups& of, const SwigluExperts& experts,
             const ExpertReplicas& copies, const TokenRows* tokens)
      : h(tape.save(in.h)),
        row_weight(in.row_weight.defined() ? tape.save(in.row_weight) : Saved()),
        second(tape.save(experts.second)),
        y(experts.second.needs_gradient() && !experts.rematerialise ? tape.save(in.y) : Saved()),
        source(tokens != nullptr ? tape.save(tokens->source) : Saved()),
        groups(tape, of),
        replicas(tape, copies),
        weighted(in.row_weight.defined()),
        gathers(tokens != nullptr),
        rematerialise(experts.rematerialise),
        topk(gathers ? tokens->topk : 1) {}

  RowIndex dy_rows(Backward& b) const { return gathers ? RowIndex{b.value(source), topk} : RowIndex{}; }
};

// Takes the activations, which are not kept any longer, or recomputes them.
Tensor take_activations(Backward& b, KeptSwiglu& kept, const SwigluRows& of, const RowGroups& groups) {
  if (!kept.rematerialise) return b.value(std::exchange(kept.y, Saved()));
  const Tensor y = b.stream().empty({of.h.size(0), of.h.size(1) / 2}, of.h.dtype());
  kernels::swiglu_forward(b.stream(), y, of.h, of.s, groups);
  return y;
}

// Activations are free again before their gradient's place, which is that of h's gradient, is taken.
void backward(Backward& b, KeptSwiglu& kept, const Tensor& dy) {
  Stream& s = b.stream();
  const RowGroups groups = kept.groups.value(b);
  const ExpertReplicas replicas = kept.replicas.value(b);
  const RowIndex dy_rows = kept.dy_rows(b);
  const SwigluRows of{b.value(kept.h), kept.weighted ? b.value(kept.row_weight) : Tensor()};
  if (b.wants(kept.second)) {
    const Tensor y = take_activations(b, kept, of, groups);
    b.write_with_sums(kept.second, [&](const Backward::Part& dw) {
      write_stacks(s, replicas, groups, dw, [&](const RowGroups& some, const WeightGradient& to) {
        kernels::grouped_gemm_backward_weight(s, to, dy, y, some, {.dy = dy_rows});
      });
    });
  }
  if (!b.wants(kept.h) && !b.wants(kept.row_weight)) return;
  const SwigluGradient to{s.empty_like(of.h), b.wants(kept.row_weight) ? s.empty_like(of.s) : Tensor()};
  for_stacks(s, replicas, groups, b.value(kept.second), [&](const RowGroups& some, const Tensor& stack) {
    kernels::grouped_swiglu_backward(s, to, dy, some, stack, of, dy_rows);
  });
  b.add(kept.h, to.dh);
  if (to.ds.defined()) b.add(kept.row_weight, to.ds);
}

Var record(Tape& tape, const Tensor& out, const Activated& in, const SwigluExperts& experts, KeptSwiglu kept) {
  std::vector<Var> inputs = {in.h, experts.second};
  if (in.row_weight.defined()) inputs.push_back(in.row_weight);
  return tape.record("swiglu_experts", out, inputs,
                     [kept = std::move(kept)](Backward& b, const Tensor& dy) mutable { backward(b, kept, dy); });
}

}  // namespace

Var swiglu_experts(Tape& tape, const Var& rows, const RowGroups& groups, const Var& row_weight,
                   const SwigluExperts& experts, const ExpertReplicas& replicas) {
  const int64_t capacity = rows.size(0);
  check(capacity, row_weight, experts);
  Stream& s = tape.stream();
  const Var &first = experts.first, &second = experts.second;
  Activated in{{}, row_weight, {}};
  const auto activate = [&](const Tensor& h) {
    in.y = s.empty({capacity, second.size(2)}, rows.dtype());
    for_stacks(s, replicas, groups, first.value(), [&](const RowGroups& of, const Tensor& stack) {
      kernels::grouped_swiglu_forward(s, in.y, h, rows.value(), of, stack, weights_of(row_weight));
    });
  };
  in.h = grouped_linear_computed_by(activate, tape, rows, groups, first, replicas);
  const Tensor out = s.empty({capacity, second.size(1)}, rows.dtype());
  for_stacks(s, replicas, groups, second.value(),
             [&](const RowGroups& of, const Tensor& stack) { kernels::grouped_gemm_forward(s, out, in.y, of, stack); });
  return record(tape, out, in, experts, KeptSwiglu(tape, in, groups, experts, replicas, nullptr));
}

Var swiglu_experts(Tape& tape, const Var& x, const TokenRows& tokens, const RowGroups& groups, const Var& row_weight,
                   const SwigluExperts& experts) {
  const int64_t capacity = tokens.source.size(0);
  check(capacity, row_weight, experts);
  Stream& s = tape.stream();
  const Var &first = experts.first, &second = experts.second;
  Activated in{{}, row_weight, {}};
  const auto activate = [&](const Tensor& h) {
    in.y = s.empty({capacity, second.size(2)}, x.dtype());
    kernels::grouped_swiglu_forward(s, in.y, h, x.value(), groups, first.value(), weights_of(row_weight),
                                    {tokens.source, tokens.topk});
  };
  in.h = gathered_linear_computed_by(activate, tape, x, tokens, groups, first);
  const Tensor out = s.empty({tokens.slot.size(0) / tokens.topk, second.size(1)}, x.dtype());
  {
    const Tensor products = s.empty({capacity, second.size(1)}, x.dtype());
    kernels::grouped_gemm_forward(s, products, in.y, groups, second.value());
    kernels::sum_assignments(s, out, products, tokens.slot);
  }
  return record(tape, out, in, experts, KeptSwiglu(tape, in, groups, experts, {}, &tokens));
}

}  // namespace witan::ops
