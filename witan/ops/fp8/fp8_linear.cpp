#include <utility>

#include "witan/ops/fp8/fp8_operands.h"
#include "witan/ops/fp8/fp8_products.h"

namespace witan::ops {
namespace {

using kernels::Fp8Columns;
using kernels::Fp8RowBlocks;
using kernels::Fp8Rows;

// A product under way, of a stack of matrices with groups or of one matrix without.
class Product {
 public:
  Product(Tape& tape, const Var& x, const RowGroups& groups, const Var& w,
          std::shared_ptr<const Fp8Quantiser> quantiser)
      : groups_(groups),
        quantiser_(quantiser ? std::move(quantiser) : std::make_shared<const Fp8Quantiser>()),
        blocks_(Fp8RowBlocks::empty(tape.stream(), groups, as_matrix(x.value()).size(0))) {
    Stream& s = tape.stream();
    const Tensor rows = as_matrix(x.value());
    kernels::fp8_row_blocks(s, blocks_, groups_);
    const Fp8Rows by_rows = quantiser_->empty_rows(s, Fp8Operand::input, rows.size(0), rows.size(1));
    if (SavedOperand::by_columns(tape, x, w))
      columns_ = quantiser_->empty_columns(s, Fp8Operand::input, blocks_, rows.size(1));
    quantiser_->quantise(s, Fp8Operand::input, noted_of(tape), by_rows, columns_, rows, blocks_);
    const int64_t N = w.size(w.shape().dims() - 2);
    y_ = s.empty(x.shape().with(x.shape().dims() - 1, N), x.dtype());
    kernels::fp8_product(s, as_matrix(y_), {by_rows, quantiser_->weights(s, noted_of(tape), stacked(w.value()), false)},
                         groups_);
  }

  const Tensor& y() const { return y_; }

  // The closure of the backward: dw = dy^T x     dx = dy w
  auto backward(Tape& tape, const Var& x, const Var& w) const {
    return [x = tape.slot(x), w = tape.save(w), in = SavedOperand(tape, x, w, columns_),
            saved = SavedRowBlocks(tape, blocks_), within = SavedGroups(tape, groups_), quantiser = quantiser_,
            shape = x.shape()](Backward& b, const Tensor& gradient) {
      if (!b.wants(x) && !b.wants(w)) return;
      Stream& s = b.stream();
      const Tensor dy = as_matrix(gradient);
      const Fp8RowBlocks blocks = saved.value(b);
      constexpr auto kGradient = Fp8Operand::gradient;
      const Fp8Rows dy_rows = b.wants(x) ? quantiser->empty_rows(s, kGradient, dy.size(0), dy.size(1)) : Fp8Rows();
      Fp8Columns dy_columns = b.wants(w) ? quantiser->empty_columns(s, kGradient, blocks, dy.size(1)) : Fp8Columns();
      quantiser->quantise(s, kGradient, Fp8Quantiser::Noted::yes, dy_rows, dy_columns, dy, blocks);
      if (b.wants(w)) write_fp8_gradient(b, w, dy_columns, in.value(b, *quantiser, blocks), blocks.groups);
      dy_columns = {};
      if (!b.wants(x)) return;
      const Tensor dx = s.empty(shape, gradient.dtype());
      const Tensor matrices = stacked(b.value(w));
      kernels::fp8_product(s, as_matrix(dx),
                           {dy_rows, quantiser->weights(s, Fp8Quantiser::Noted::no, matrices, true), true},
                           within.value(b));
      b.add(x, dx);
    };
  }

 private:
  RowGroups groups_;
  std::shared_ptr<const Fp8Quantiser> quantiser_;
  Fp8RowBlocks blocks_;
  Fp8Columns columns_;
  Tensor y_;
};

}  // namespace

// Both are recorded as the maps that they are: their gradients are those of linear() and grouped_linear(), which
// finite differences cannot see through the rounding.
Var fp8_linear(Tape& tape, const Var& x, const Var& w, const std::shared_ptr<const Fp8Quantiser>& quantiser) {
  require<ShapeError>(x.shape().dims() >= 1, "fp8_linear: x must have at least one dim");
  check_fp8_weight("fp8_linear", x.shape(), x.dtype(), w, 2);
  const Product product(tape, x, {}, w, quantiser);
  return tape.record("linear", product.y(), {x, w}, product.backward(tape, x, w));
}

Var fp8_grouped_linear(Tape& tape, const Var& rows, const RowGroups& groups, const Var& w,
                       const std::shared_ptr<const Fp8Quantiser>& quantiser) {
  require<ShapeError>(rows.shape().dims() == 2, "fp8_grouped_linear: rows must be [capacity, K], got ", rows.shape());
  check_fp8_weight("fp8_grouped_linear", rows.shape(), rows.dtype(), w, 3);
  check_fp8_groups("fp8_grouped_linear", groups, w.size(0));
  const Product product(tape, rows, groups, w, quantiser);
  return tape.record("grouped_linear", product.y(), {rows, w}, product.backward(tape, rows, w));
}

}  // namespace witan::ops
