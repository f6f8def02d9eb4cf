// Distributed Shampoo (Gupta et al., 2018; Shi et al., A Distributed Data-Parallel PyTorch Implementation of the
// Distributed Shampoo Optimizer, arXiv 2309.06497), with the order of operations of facebookresearch/optimizers. Of
// each block G of a matrix's gradient:
//
//   L = b L + w G G^T    R = b R + w G^T G            b = shampoo_beta, w = 1 - b, or 1 where b is 1
//   M = b1 M + (1 - b1) G    F = M / (1 - b1^t)       b1 = adam_beta1; 0: F = G
//   at update `start`, and from then on at each that the frequency divides (kernels/optimizer/inverse_root.h):
//     X_L = (L / (1 - b^t))^-e    X_R = (R / (1 - b^t))^-e      e = shampoo_exponent, or 1 / (2 order)
//   P = X_L F X_R, scaled to the norm of the grafted update; before `start` the grafted update itself
//   W = W - lr (P + weight_decay W)
//
// The grafted update is Adam's (F / (sqrt(v^) + adam_eps)), or F (sgd); `none` takes P as it is, and F before `start`.
// `start` is start_preconditioning_step, or the frequency where that is 0. An expert is a matrix, and so is a matrix
// of gate and up; a vector has one factor, R, and is of order 1. Dims are not merged.
//
// If tensor-parallel ranks divide a matrix, each of them gathers the gradient, F and the grafted update, computes the
// whole matrix, and takes its piece.

#include "witan/kernels/optimizer/shampoo.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "witan/kernels/gemm/gemm.h"
#include "witan/kernels/optimizer/inverse_root.h"
#include "witan/optim/group_optimizer.h"
#include "witan/optim/matrix_pieces.h"

namespace witan {
namespace {

using kernels::Transpose;

constexpr size_t kFactors = 0, kRoots = 1;  // in Shard::state; then the moments of elements

// Rows [row, row + rows) and columns [column, column + columns) of a matrix. A block has a factor for each dim that is
// longer than 1: left [rows, rows], right [columns, columns]; a single number has the right one.
struct ShampooBlock {
  int64_t row, rows, column, columns;
  int64_t left_at, right_at;  // begins of its factors in the matrix's flat state; -1: none

  int order() const { return (left_at >= 0) + (right_at >= 0); }
};

// Blocks of at most `most` rows and columns, the last of a row or column as large as is left (torch.split); row by row.
std::vector<ShampooBlock> shampoo_blocks(int64_t rows, int64_t columns, int64_t most) {
  std::vector<ShampooBlock> blocks;
  int64_t at = 0;
  for (int64_t row = 0; row < rows; row += most) {
    for (int64_t column = 0; column < columns; column += most) {
      ShampooBlock block{row, std::min(most, rows - row), column, std::min(most, columns - column), -1, -1};
      if (block.rows > 1) block.left_at = std::exchange(at, at + block.rows * block.rows);
      if (block.columns > 1 || block.rows == 1) block.right_at = std::exchange(at, at + block.columns * block.columns);
      blocks.push_back(block);
    }
  }
  return blocks;
}

// Elements of all factors of a matrix.
int64_t shampoo_factor_elements(int64_t rows, int64_t columns, int64_t most) {
  int64_t elements = 0;
  for (const ShampooBlock& block : shampoo_blocks(rows, columns, most)) {
    if (block.left_at >= 0) elements += block.rows * block.rows;
    if (block.right_at >= 0) elements += block.columns * block.columns;
  }
  return elements;
}

bool keeps_first_moment(const OptimizerSettings& settings) {
  return settings.adam_beta1 > 0;
}
bool keeps_second_moment(const OptimizerSettings& settings) {
  return settings.shampoo_grafting == "adam";
}

std::vector<OptimizerStateSpec> shampoo_state(const OptimizerSettings& settings) {
  const auto elements = [](const OptimizerSettings& of, int64_t rows, int64_t columns) {
    return shampoo_factor_elements(rows, columns, of.max_preconditioner_dim);
  };
  using Shape = OptimizerStateSpec::Shape;
  std::vector<OptimizerStateSpec> state = {{"shampoo.factors", Shape::matrices, {}, elements},
                                           {"shampoo.roots", Shape::matrices, {}, elements}};
  if (keeps_first_moment(settings)) state.push_back({"shampoo.m"});
  if (keeps_second_moment(settings)) state.push_back({"shampoo.v"});
  return state;
}

// The bytes of a matrix's elements, and its products at about five FLOPs for a byte that a processor moves.
double shampoo_cost(const OptimizerSettings& settings, int64_t rows, int64_t columns) {
  const double elements = static_cast<double>(rows) * static_cast<double>(columns);
  double products = 0;
  for (const ShampooBlock& block : shampoo_blocks(rows, columns, settings.max_preconditioner_dim)) {
    const auto of_dim = [&](int64_t dim) {
      const auto m = static_cast<double>(dim), held = static_cast<double>(block.rows * block.columns);
      return 4 * held * m + 11 * m * m * m / static_cast<double>(settings.precondition_frequency);
    };
    if (block.left_at >= 0) products += of_dim(block.rows);
    if (block.right_at >= 0) products += of_dim(block.columns);
  }
  return 60 * elements + products / 5;
}

kernels::RootSchedule schedule_of(const OptimizerSettings& settings) {
  const int64_t frequency = settings.precondition_frequency, start = settings.start_preconditioning_step;
  return {frequency, start == 0 ? frequency : start};
}

// The block's part of a matrix.
Tensor block_of(const Tensor& matrix, const ShampooBlock& block) {
  return matrix.narrow(0, block.row, block.rows).narrow(1, block.column, block.columns);
}

Tensor square_at(const Tensor& flat, int64_t at, int64_t size) {
  return flat.narrow(0, at, size * size).reshape({size, size});
}

class Shampoo final : public GroupOptimizer {
 public:
  // Throws ConfigError if the stream's device does not support shampoo_root.
  Shampoo(const ParamGroup& group, size_t index, Stream& stream, std::vector<ParameterShard> parameter_shards);

 private:
  void update_shards(Stream& stream, const Tensor& step, int64_t rate) override;
  void update_shard(Stream& stream, const Shard& shard, const Tensor& step, int64_t rate) const;
  // Writes the direction of one matrix, [rows, columns].
  struct Matrix {
    Tensor outer, filtered, grafted, factors, roots;
  };
  void precondition(Stream& stream, const Matrix& matrix, const Tensor& direction, const Tensor& step) const;
  void renew(Stream& stream, const Tensor& factor, const Tensor& root, const Tensor& outer, bool left, int order,
             const Tensor& step) const;

  OptimizerSettings settings_;
};

Shampoo::Shampoo(const ParamGroup& group, size_t index, Stream& stream, std::vector<ParameterShard> parameter_shards)
    : GroupOptimizer(group, index, stream, std::move(parameter_shards)), settings_(group.settings) {
  require<ConfigError>(settings_.shampoo_root == "newton" || !stream.plans_for_cuda(),
                       "shampoo_root = eigen: eigendecompositions are made on the CPU alone, since on a GPU they would "
                       "wait for the host; set shampoo_root = newton, or device = cpu");
}

void Shampoo::update_shards(Stream& stream, const Tensor& step, int64_t rate) {
  for (const Shard& shard : shards()) update_shard(stream, shard, step, rate);
}

void Shampoo::update_shard(Stream& stream, const Shard& shard, const Tensor& step, int64_t rate) const {
  const Tensor value = shard.value();
  const DType dtype = accumulator(value.dtype());
  const auto temporary = [&] { return stream.empty(value.shape(), dtype, MemoryTag::workspace); };
  const bool moment = keeps_first_moment(settings_), second = keeps_second_moment(settings_);
  const Tensor outer = temporary(), filtered = temporary(), grafted = second ? temporary() : Tensor();
  const Tensor m = moment ? shard.state[kRoots + 1].tensor : Tensor(),
               v = second ? shard.state.back().tensor : Tensor();
  const double beta = settings_.shampoo_beta;
  kernels::shampoo_moments(stream, {m, v, shard.gradient(), outer, filtered, grafted}, step,
                           {settings_.adam_beta1, settings_.adam_beta2, settings_.adam_eps, beta < 1 ? 1 - beta : 1});
  const MatrixPieces pieces(shard.part);
  const auto [rows, columns] = pieces.whole();
  const int64_t each = shard.state[kFactors].tensor.elements() / pieces.count();
  const int64_t held = value.elements() / pieces.count();
  for (int64_t i = 0; i < pieces.count(); ++i) {
    const auto state = [&](size_t which) { return shard.state[which].tensor.narrow(0, i * each, each); };
    const Tensor whole_filtered = pieces.gathered(stream, filtered, i);
    const Matrix matrix{pieces.gathered(stream, outer, i), whole_filtered,
                        second ? pieces.gathered(stream, grafted, i) : whole_filtered, state(kFactors), state(kRoots)};
    const Tensor direction = stream.empty({rows, columns}, dtype, MemoryTag::workspace);
    precondition(stream, matrix, direction, step);
    const auto own = [&](const Tensor& flat) { return flat.defined() ? flat.narrow(0, i * held, held) : Tensor(); };
    kernels::apply_direction(stream, {own(value), own(shard.remainder), pieces.piece(stream, direction)}, step,
                             {.weight_decay = shard.weight_decay, .rate = rate});
  }
}

void Shampoo::precondition(Stream& stream, const Matrix& matrix, const Tensor& direction, const Tensor& step) const {
  for (const ShampooBlock& block :
       shampoo_blocks(direction.size(0), direction.size(1), settings_.max_preconditioner_dim)) {
    const Tensor outer = block_of(matrix.outer, block), to = block_of(direction, block);
    Tensor from = block_of(matrix.filtered, block);
    const auto factor = [&](int64_t at, int64_t size, bool left) {
      const Tensor root = square_at(matrix.roots, at, size);
      renew(stream, square_at(matrix.factors, at, size), root, outer, left, block.order(), step);
      return root;
    };
    if (block.left_at >= 0) {
      const Tensor root = factor(block.left_at, block.rows, true);
      const Tensor product = block.right_at < 0 ? to : stream.empty(to.shape(), to.dtype(), MemoryTag::workspace);
      kernels::gemm(stream, product, Write::overwrite, root, Transpose::no, from, Transpose::no);
      from = product;
    }
    if (block.right_at >= 0) {
      const Tensor root = factor(block.right_at, block.columns, false);
      kernels::gemm(stream, to, Write::overwrite, from, Transpose::no, root, Transpose::no);
    }
    const Tensor sums = stream.empty({block.rows, 2}, DType::f64, MemoryTag::workspace);
    kernels::graft(stream, to, block_of(matrix.grafted, block), sums, step,
                   {schedule_of(settings_).start, settings_.shampoo_grafting != "none"});
  }
}

// Adds this step's gradient to the factor, and computes its root when it is due.
void Shampoo::renew(Stream& stream, const Tensor& factor, const Tensor& root, const Tensor& outer, bool left, int order,
                    const Tensor& step) const {
  if (settings_.shampoo_beta < 1) kernels::decay_factor(stream, factor, step, settings_.shampoo_beta);
  kernels::gemm(stream, factor, Write::accumulate, outer, left ? Transpose::no : Transpose::yes, outer,
                left ? Transpose::yes : Transpose::no);
  const kernels::RootSchedule schedule = schedule_of(settings_);
  kernels::inverse_root(
      stream, root, factor, step,
      {.method = settings_.shampoo_root == "newton" ? kernels::RootMethod::newton : kernels::RootMethod::eigen,
       .exponent = settings_.shampoo_exponent > 0 ? settings_.shampoo_exponent : 1.0 / (2 * order),
       .eps = settings_.shampoo_eps,
       .beta = settings_.shampoo_beta,
       .schedule = schedule,
       .due = schedule.due(update_number())});
}

}  // namespace

const OptimizerTraits kShampooTraits = {.name = "shampoo",
                                        .needs = ShardBy::matrices,
                                        .state = shampoo_state,
                                        .cost = shampoo_cost,
                                        .make = make_group_optimizer<Shampoo>,
                                        .eager = true};

}  // namespace witan
