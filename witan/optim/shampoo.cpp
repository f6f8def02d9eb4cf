#include "witan/optim/shampoo.h"

#include <cmath>

#include "witan/kernels/gemm/gemm.h"
#include "witan/kernels/optimizer/shampoo.h"

namespace witan {
namespace {

using kernels::Transpose;

constexpr size_t kFactors = 0, kRoots = 1;  // in Shard::state; then what is kept of elements

bool keeps_first_moment(const OptimizerSettings& settings) {
  return settings.adam_beta1 > 0;
}
bool keeps_second_moment(const OptimizerSettings& settings) {
  return settings.shampoo_grafting == "adam";
}

std::vector<OptimizerStateSpec> state_of(const OptimizerSettings& settings) {
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

// Of a matrix: what elements take, and its products, of which a processor makes about five FLOP for a byte that it
// moves.
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

// A block's rows and columns of a matrix.
Tensor block_of(const Tensor& matrix, const ShampooBlock& block) {
  return matrix.narrow(0, block.row, block.rows).narrow(1, block.column, block.columns);
}

Tensor square_at(const Tensor& flat, int64_t at, int64_t size) {
  return flat.narrow(0, at, size * size).reshape({size, size});
}

}  // namespace

const OptimizerTraits Shampoo::kTraits = {
    .name = "shampoo",
    .needs = ShardBy::matrices,
    .state = state_of,
    .cost = shampoo_cost,
    .make = [](const ParamGroup& group, size_t index, Stream& stream,
               std::vector<ParameterShard> parameter_shards) -> std::unique_ptr<Optimizer> {
      return std::make_unique<Shampoo>(group, index, stream, std::move(parameter_shards));
    },
    .eager = true};

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

// The factor with this step's gradient, and its root when it is time.
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

}  // namespace witan
