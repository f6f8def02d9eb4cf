// Shared by ops with 8-bit operands: checks, and the tensors that their backward keeps.
#pragma once

#include "witan/autograd/tape.h"
#include "witan/kernels/fp8/fp8.h"
#include "witan/ops/fp8/fp8_quantiser.h"
#include "witan/ops/shape/shape.h"

namespace witan::ops {

// w [N, K], or [E, N, K] with three dims, for x [.., K].
inline void check_fp8_weight(const char* op, const Shape& x, DType dtype, const Var& w, int dims) {
  const int64_t K = x.last();
  require<ShapeError>(w.shape().dims() == dims && w.shape().last() == K, op, ": w must be [", dims == 3 ? "E, " : "",
                      "N, K=", K, "], got ", w.shape());
  require<ShapeError>(w.dtype() == dtype, op, ": w is ", w.dtype(), " but x is ", dtype);
  require<ShapeError>(dtype == DType::f32 || dtype == DType::bf16, op, ": results are float32 or bfloat16, got x of ",
                      dtype);
  const int64_t N = w.size(dims - 2);
  require<ShapeError>(N % kernels::kFp8Multiple == 0 && K % kernels::kFp8Multiple == 0, op, ": N=", N, " and K=", K,
                      " must be multiples of ", kernels::kFp8Multiple);
}

inline void check_fp8_groups(const char* op, const RowGroups& groups, int64_t experts) {
  for (const Tensor& bounds : {groups.begin, groups.count})
    require<ShapeError>(bounds.defined() && bounds.shape() == Shape{experts} && bounds.dtype() == DType::i64, op,
                        ": groups.begin and groups.count must be int64 [E=", experts, "]",
                        bounds.defined() ? cat(", got ", bounds.dtype(), " ", bounds.shape()) : "");
}

// Magnitudes count for later steps if the tape records the forward of a training step.
inline Fp8Quantiser::Noted noted_of(const Tape& tape) {
  return tape.training_forward() ? Fp8Quantiser::Noted::yes : Fp8Quantiser::Noted::no;
}

// A matrix as a stack of one.
inline Tensor stacked(const Tensor& w) {
  return w.shape().dims() == 3 ? w : w.reshape({1, w.size(0), w.size(1)});
}

class SavedRowBlocks {
 public:
  SavedRowBlocks(Tape& tape, const kernels::Fp8RowBlocks& blocks)
      : groups_(tape, blocks.groups),
        table_(blocks.table.defined() ? tape.save(blocks.table) : Saved()),
        most_(blocks.most),
        grouped_(blocks.table.defined()) {}

  kernels::Fp8RowBlocks value(Backward& b) const {
    if (!grouped_) return {{}, {}, most_};
    return {groups_.value(b), b.value(table_), most_};
  }

 private:
  SavedGroups groups_;
  Saved table_;
  int64_t most_;
  bool grouped_;
};

// Columns that a weight's gradient is made of; undefined ones are not kept.
class SavedColumns {
 public:
  SavedColumns(Tape& tape, const kernels::Fp8Columns& columns)
      : kept_(columns.values.defined()),
        values_(kept_ ? tape.save(columns.values) : Saved()),
        scales_(kept_ ? tape.save(columns.scales) : Saved()) {}

  bool kept() const { return kept_; }
  kernels::Fp8Columns value(Backward& b) const { return {b.value(values_), b.value(scales_)}; }

 private:
  bool kept_;
  Saved values_, scales_;
};

// Rows that a weight is applied to, for its gradient: by columns or, where there are none, as they were or by what it
// takes to compute them again. Nothing for a weight without a gradient.
class SavedOperand {
 public:
  // Whether they are to be kept by columns.
  static bool by_columns(const Tape& tape, const Var& x, const Var& w) {
    return tape.recording() && w.needs_gradient() && !x.is_rematerialised();
  }

  SavedOperand(Tape& tape, const Var& x, const Var& w, const kernels::Fp8Columns& columns)
      : columns_(tape, columns), rows_(columns.values.defined() ? Saved() : tape.save_for(w, x)) {}

  kernels::Fp8Columns value(Backward& b, const Fp8Quantiser& quantiser, const kernels::Fp8RowBlocks& blocks,
                            const RowIndex& x_rows = {}) const {
    if (columns_.kept()) return columns_.value(b);
    const Tensor rows = as_matrix(b.value(rows_));
    kernels::Fp8Columns out = quantiser.empty_columns(b.stream(), Fp8Operand::input, blocks, rows.size(1));
    quantiser.quantise(b.stream(), Fp8Operand::input, Fp8Quantiser::Noted::no, {}, out, rows, blocks, x_rows);
    return out;
  }

 private:
  SavedColumns columns_;
  Saved rows_;
};

// dw (=|+=) dy^T x, whole or source by source.
inline void write_fp8_gradient(Backward& b, const Saved& w, const kernels::Fp8Columns& dy, const kernels::Fp8Columns& x,
                               const RowGroups& blocks) {
  b.write_parts(w, [&](const Tensor& dw, Write how, int64_t part, int64_t parts) {
    assert(parts == 1 || parts == blocks.sources());
    kernels::fp8_weight_gradient(b.stream(), stacked(dw), how, dy, x, parts == 1 ? blocks : blocks.of_source(part));
  });
}

}  // namespace witan::ops
