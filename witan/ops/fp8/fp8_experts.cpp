#include "witan/kernels/moe/dispatch.h"
#include "witan/kernels/pointwise/activation.h"
#include "witan/ops/fp8/fp8_operands.h"
#include "witan/ops/fp8/fp8_products.h"

namespace witan::ops {
namespace {

using kernels::Fp8Columns;
using kernels::Fp8RowBlocks;
using kernels::Fp8Rows;

constexpr const char* kExpertsOp = "fp8_experts";

void check(const Var& rows, int64_t capacity, const RowGroups& groups, const Var& row_weight,
           const Fp8Experts& experts) {
  const Var &first = experts.first, &second = experts.second;
  require<ShapeError>(rows.shape().dims() == 2, kExpertsOp, ": rows must be [capacity, D], got ", rows.shape());
  check_fp8_weight(kExpertsOp, rows.shape(), rows.dtype(), first, 3);
  require<ShapeError>(first.size(1) % 2 == 0, kExpertsOp, ": w holds [gate | up], an even number of rows, got ",
                      first.shape());
  check_fp8_weight(kExpertsOp, {capacity, first.size(1) / 2}, rows.dtype(), second, 3);
  require<ShapeError>(second.size(0) == first.size(0), kExpertsOp, ": ", first.size(0), " first matrices and ",
                      second.size(0), " second ones");
  check_fp8_groups(kExpertsOp, groups, first.size(0));
  require<ShapeError>(!row_weight.defined() ||
                          (row_weight.shape() == Shape{capacity} && row_weight.dtype() == accumulator(rows.dtype())),
                      kExpertsOp, ": row_weight must be [capacity=", capacity, "] ", accumulator(rows.dtype()),
                      row_weight.defined() ? cat(", got ", row_weight.dtype(), " ", row_weight.shape()) : "");
}

void check(const Var& x, const TokenRows& tokens) {
  for (const Tensor& places : {tokens.source, tokens.slot})
    require<ShapeError>(places.defined() && places.shape().dims() == 1 && places.dtype() == DType::i64, kExpertsOp,
                        ": tokens.source and tokens.slot must be int64 and have one dim",
                        places.defined() ? cat(", got ", places.dtype(), " ", places.shape()) : "");
  require<ShapeError>(x.shape().dims() == 2 && tokens.topk > 0 && x.size(0) * tokens.topk == tokens.slot.size(0),
                      kExpertsOp, ": x must be [T, D] and tokens.slot [T K], K=", tokens.topk, ", got ", x.shape(),
                      " and ", tokens.slot.shape());
}

// The rows of tokens; empty if rows are given.
struct SavedTokens {
  SavedTokens(Tape& tape, const TokenRows* tokens)
      : gathers(tokens != nullptr),
        source(gathers ? tape.save(tokens->source) : Saved()),
        slot(gathers ? tape.save(tokens->slot) : Saved()),
        topk(gathers ? tokens->topk : 1) {}
  RowIndex index(Backward& b) const { return gathers ? RowIndex{b.value(source), topk} : RowIndex{}; }

  bool gathers;
  Saved source, slot;
  int64_t topk;
};

// [capacity, D] as they are, or of each token their sum, [T, D].
Tensor summed_for_tokens(Stream& s, Tensor rows, const Tensor& slot, int64_t topk) {
  if (!slot.defined()) return rows;
  Tensor y = s.empty({slot.size(0) / topk, rows.size(1)}, rows.dtype());
  kernels::sum_assignments(s, y, rows, slot);
  return y;
}

// The tensors saved for the backward.
struct KeptFp8 {
  Slot rows;
  Saved first, second, h, row_weight;  // h [capacity, 2F]
  SavedOperand in;                     // of first
  SavedColumns activations;            // of second; not kept: computed from h
  SavedGroups groups;
  SavedRowBlocks blocks;
  SavedTokens tokens;
  bool weighted;
  std::shared_ptr<const Fp8Quantiser> of_first, of_second;

  bool wants_below(Backward& b) const { return b.wants(rows) || b.wants(first) || (weighted && b.wants(row_weight)); }
  Tensor weight(Backward& b) const { return weighted ? b.value(row_weight) : Tensor(); }
};

// Quantises swiglu(h) s by rows, by columns or both; blockwise without writing its result to memory.
void quantise_swiglu(Stream& s, const Fp8Quantiser& quantiser, Fp8Quantiser::Noted noted, const Fp8Rows& rows,
                     const Fp8Columns& columns, const SwigluRows& of, const RowGroups& groups,
                     const Fp8RowBlocks& blocks) {
  if (quantiser.blockwise()) return kernels::fp8_quantise_swiglu(s, rows, columns, of.h, of.s, groups, blocks);
  const Tensor y = s.empty({of.h.size(0), of.h.size(1) / 2}, of.h.dtype());
  kernels::swiglu_forward(s, y, of.h, of.s, groups);
  quantiser.quantise(s, Fp8Operand::input, noted, rows, columns, y, blocks);
}

// Quantises the gradient of swiglu and computes ds.
void quantise_swiglu_backward(Stream& s, const Fp8Quantiser& quantiser, const Fp8Rows& rows, const Fp8Columns& columns,
                              const kernels::Fp8SwigluGradient& of, const RowGroups& groups,
                              const Fp8RowBlocks& blocks) {
  const bool wanted = rows.values.defined() || columns.values.defined();
  if (wanted && quantiser.blockwise())
    return kernels::fp8_quantise_swiglu_backward(s, rows, columns, of, groups, blocks);
  const Tensor dh = s.empty_like(of.h);
  kernels::swiglu_backward(s, dh, of.ds, of.dy, of.h, of.s, groups);
  if (wanted) quantiser.quantise(s, Fp8Operand::gradient, Fp8Quantiser::Noted::yes, rows, columns, dh, blocks);
}

Fp8Columns activations_of(Backward& b, const KeptFp8& kept, const RowGroups& groups, const Fp8RowBlocks& blocks) {
  if (kept.activations.kept()) return kept.activations.value(b);
  const Tensor h = b.value(kept.h);
  Fp8Columns out = kept.of_second->empty_columns(b.stream(), Fp8Operand::input, blocks, h.size(1) / 2);
  quantise_swiglu(b.stream(), *kept.of_second, Fp8Quantiser::Noted::no, {}, out, {h, kept.weight(b)}, groups, blocks);
  return out;
}

// The gradient of the activations [capacity, F], and of the second weight on the way. dy [capacity, D], or [T, D].
Tensor backward_second(Backward& b, const KeptFp8& kept, const Tensor& dy, const RowGroups& groups,
                       const Fp8RowBlocks& blocks) {
  Stream& s = b.stream();
  const bool below = kept.wants_below(b);
  const RowIndex dy_rows = kept.tokens.index(b);
  const int64_t capacity = dy_rows.capacity(dy);
  const Fp8Quantiser& quantiser = *kept.of_second;
  constexpr auto kGradient = Fp8Operand::gradient;
  const Fp8Rows rows = below ? quantiser.empty_rows(s, kGradient, capacity, dy.size(1)) : Fp8Rows();
  Fp8Columns columns = b.wants(kept.second) ? quantiser.empty_columns(s, kGradient, blocks, dy.size(1)) : Fp8Columns();
  if (!below && !columns.values.defined()) return {};
  quantiser.quantise(s, kGradient, Fp8Quantiser::Noted::yes, rows, columns, dy, blocks, dy_rows);
  if (columns.values.defined())
    write_fp8_gradient(b, kept.second, columns, activations_of(b, kept, groups, blocks), blocks.groups);
  columns = {};
  if (!below) return {};
  const Tensor w = b.value(kept.second);
  Tensor da = s.empty({capacity, w.size(2)}, dy.dtype());
  kernels::fp8_product(s, da, {rows, quantiser.weights(s, Fp8Quantiser::Noted::no, w, true), true}, groups);
  return da;
}

void backward_first(Backward& b, const KeptFp8& kept, Tensor da, const RowGroups& groups, const Fp8RowBlocks& blocks) {
  Stream& s = b.stream();
  const Tensor h = b.value(kept.h), weight = kept.weight(b);
  const Tensor ds = kept.weighted && b.wants(kept.row_weight) ? s.empty_like(weight) : Tensor();
  const Fp8Quantiser& quantiser = *kept.of_first;
  constexpr auto kGradient = Fp8Operand::gradient;
  const Fp8Rows rows = b.wants(kept.rows) ? quantiser.empty_rows(s, kGradient, h.size(0), h.size(1)) : Fp8Rows();
  Fp8Columns columns = b.wants(kept.first) ? quantiser.empty_columns(s, kGradient, blocks, h.size(1)) : Fp8Columns();
  quantise_swiglu_backward(s, quantiser, rows, columns, {ds, da, h, weight}, groups, blocks);
  da = {};
  if (ds.defined()) b.add(kept.row_weight, ds);
  if (columns.values.defined())
    write_fp8_gradient(b, kept.first, columns, kept.in.value(b, quantiser, blocks, kept.tokens.index(b)),
                       blocks.groups);
  columns = {};
  if (!rows.values.defined()) return;
  const Tensor w = b.value(kept.first);
  Tensor dx = s.empty({h.size(0), w.size(2)}, h.dtype());
  kernels::fp8_product(s, dx, {rows, quantiser.weights(s, Fp8Quantiser::Noted::no, w, true), true}, groups);
  b.add(kept.rows, summed_for_tokens(s, std::move(dx), kept.tokens.gathers ? b.value(kept.tokens.slot) : Tensor(),
                                     kept.tokens.topk));
}

// `tokens`: null, or whose rows they are.
Var run_experts(Tape& tape, const Var& rows, const TokenRows* tokens, const RowGroups& groups, const Var& row_weight,
                const Fp8Experts& experts) {
  const RowIndex x_rows = tokens ? RowIndex{tokens->source, tokens->topk} : RowIndex{};
  check(rows, x_rows.capacity(rows.value()), groups, row_weight, experts);
  Stream& s = tape.stream();
  const Var &first = experts.first, &second = experts.second;
  const int64_t capacity = x_rows.capacity(rows.value()), D = rows.size(1), F = second.size(2);
  const Fp8RowBlocks blocks = Fp8RowBlocks::empty(s, groups, capacity);
  kernels::fp8_row_blocks(s, blocks, groups);
  const auto or_default = [](const std::shared_ptr<const Fp8Quantiser>& given) {
    return given ? given : std::make_shared<const Fp8Quantiser>();
  };
  const auto of_first = or_default(experts.of_first), of_second = or_default(experts.of_second);
  const Fp8Quantiser::Noted noted = noted_of(tape);

  const Tensor h = s.empty({capacity, 2 * F}, rows.dtype());
  Fp8Columns in, activations;
  {
    // Tokens are kept as they are, and quantised again for the backward: they are fewer than their rows.
    if (!tokens && SavedOperand::by_columns(tape, rows, first))
      in = of_first->empty_columns(s, Fp8Operand::input, blocks, D);
    const Fp8Rows by_rows = of_first->empty_rows(s, Fp8Operand::input, capacity, D);
    of_first->quantise(s, Fp8Operand::input, noted, by_rows, in, rows.value(), blocks, x_rows);
    kernels::fp8_product(s, h, {by_rows, of_first->weights(s, noted, first.value(), false)}, groups);
  }
  if (tape.recording() && second.needs_gradient() && !experts.rematerialise)
    activations = of_second->empty_columns(s, Fp8Operand::input, blocks, F);
  const Fp8Rows by_rows = of_second->empty_rows(s, Fp8Operand::input, capacity, F);
  quantise_swiglu(s, *of_second, noted, by_rows, activations, {h, row_weight.defined() ? row_weight.value() : Tensor()},
                  groups, blocks);
  Tensor y = s.empty({capacity, second.size(1)}, rows.dtype());
  kernels::fp8_product(s, y, {by_rows, of_second->weights(s, noted, second.value(), false)}, groups);
  y = summed_for_tokens(s, std::move(y), tokens ? tokens->slot : Tensor(), tokens ? tokens->topk : 1);

  std::vector<Var> inputs = {rows, first, second};
  if (row_weight.defined()) inputs.push_back(row_weight);
  KeptFp8 kept{tape.slot(rows),
               tape.save(first),
               tape.save(second),
               tape.save(h),
               row_weight.defined() ? tape.save(row_weight) : Saved(),
               SavedOperand(tape, rows, first, in),
               SavedColumns(tape, activations),
               SavedGroups(tape, groups),
               SavedRowBlocks(tape, blocks),
               SavedTokens(tape, tokens),
               row_weight.defined(),
               of_first,
               of_second};
  return tape.record("fp8_experts", y, inputs, [kept = std::move(kept)](Backward& b, const Tensor& dy) {
    const RowGroups within = kept.groups.value(b);
    const Fp8RowBlocks of_rows = kept.blocks.value(b);
    Tensor da = backward_second(b, kept, dy, within, of_rows);
    if (da.defined()) backward_first(b, kept, std::move(da), within, of_rows);
  });
}

}  // namespace

Var fp8_experts(Tape& tape, const Var& rows, const RowGroups& groups, const Var& row_weight,
                const Fp8Experts& experts) {
  return run_experts(tape, rows, nullptr, groups, row_weight, experts);
}

Var fp8_experts(Tape& tape, const Var& x, const TokenRows& tokens, const RowGroups& groups, const Var& row_weight,
                const Fp8Experts& experts) {
  check(x, tokens);
  return run_experts(tape, x, &tokens, groups, row_weight, experts);
}

}  // namespace witan::ops
