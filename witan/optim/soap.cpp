// SOAP (Vyas et al., SOAP: Improving and Stabilizing Shampoo using Adam, arXiv 2409.11321), with the order of
// operations of nikhilvyas/SOAP: Adam in the eigenbases of Shampoo's factors. Of a matrix [R, C]:
//
//   M = b1 M + (1 - b1) G           rotated: g = Q_L G Q_R^T, m = Q_L M Q_R^T, whose rows are the basis vectors
//   v = b2 v + (1 - b2) g^2         N = Q_L^T (m^ / (sqrt(v^) + adam_eps)) Q_R
//   W = (W - lr N) (1 - lr weight_decay)
//   L = b L + (1 - b) G G^T,  R = b R + (1 - b) G^T G  (b = shampoo_beta); every precondition_frequency updates the
//   bases take a step of power iteration with them, by QR (kernels/optimizer/soap.h)
//
// The first update makes the bases from its gradient and changes nothing else; bias corrections count from the second.
// Vectors, and dims above max_preconditioner_dim, have no factors and are not rotated.
//
// v is relative to the bases: like the factors, it is state of the whole matrix. If tensor-parallel ranks divide a
// matrix, each gathers G and M, computes the whole matrix, and takes its piece of N.

#include "witan/kernels/optimizer/soap.h"

#include "witan/kernels/gemm/gemm.h"
#include "witan/kernels/optimizer/shampoo.h"
#include "witan/optim/group_optimizer.h"
#include "witan/optim/matrix_pieces.h"

namespace witan {
namespace {

using kernels::Transpose;

constexpr size_t kMean = 0, kSquares = 1, kSoapFactors = 2, kBases = 3;  // in Shard::state

// Sizes of the square matrices that rotate the left and right side of a matrix; 0: the side is not rotated.
struct Sides {
  Sides(const OptimizerSettings& settings, int64_t rows, int64_t columns) {
    const bool matrix = rows > 1 && columns > 1;
    if (matrix && rows <= settings.max_preconditioner_dim) left = rows * rows;
    if (matrix && columns <= settings.max_preconditioner_dim) right = columns * columns;
  }
  int64_t elements() const { return left + right; }
  // The square matrix of a side in flat state; undefined if the side has none.
  Tensor left_of(const Tensor& flat, int64_t rows) const {
    return left > 0 ? flat.narrow(0, 0, left).reshape({rows, rows}) : Tensor();
  }
  Tensor right_of(const Tensor& flat, int64_t columns) const {
    return right > 0 ? flat.narrow(0, left, right).reshape({columns, columns}) : Tensor();
  }

  int64_t left = 0, right = 0;
};

std::vector<OptimizerStateSpec> soap_state(const OptimizerSettings&) {
  using Shape = OptimizerStateSpec::Shape;
  const auto all = [](const OptimizerSettings&, int64_t rows, int64_t columns) { return rows * columns; };
  const auto sides = [](const OptimizerSettings& of, int64_t rows, int64_t columns) {
    return Sides(of, rows, columns).elements();
  };
  return {{"soap.m"},
          {"soap.v", Shape::matrices, {}, all},
          {"soap.factors", Shape::matrices, {}, sides},
          {"soap.bases", Shape::matrices, {}, sides}};
}

// Like Shampoo's cost, with six products of a side and the gradient, and QR.
double soap_cost(const OptimizerSettings& settings, int64_t rows, int64_t columns) {
  const Sides sides(settings, rows, columns);
  const double elements = static_cast<double>(rows) * static_cast<double>(columns);
  const auto of_side = [&](int64_t squared, int64_t size) {
    const auto n = static_cast<double>(size);
    return squared == 0 ? 0 : 8 * elements * n + 6 * n * n * n / static_cast<double>(settings.precondition_frequency);
  };
  return 60 * elements + (of_side(sides.left, rows) + of_side(sides.right, columns)) / 5;
}

class Soap final : public GroupOptimizer {
 public:
  Soap(const ParamGroup& group, size_t index, Stream& stream, std::vector<ParameterShard> parameter_shards);

 private:
  void update_shards(Stream& stream, const Tensor& step, int64_t rate) override;
  void update_shard(Stream& stream, const Shard& shard, const Tensor& step, int64_t rate) const;
  // x [R, C] rotated into the bases or, with `back`, out of them; x itself if the matrix has none.
  Tensor rotated(Stream& stream, const Tensor& x, const Tensor& left, const Tensor& right, bool back) const;

  OptimizerSettings settings_;
};

Soap::Soap(const ParamGroup& group, size_t index, Stream& stream, std::vector<ParameterShard> parameter_shards)
    : GroupOptimizer(group, index, stream, std::move(parameter_shards)), settings_(group.settings) {}

void Soap::update_shards(Stream& stream, const Tensor& step, int64_t rate) {
  for (const Shard& shard : shards()) update_shard(stream, shard, step, rate);
}

void Soap::update_shard(Stream& stream, const Shard& shard, const Tensor& step, int64_t rate) const {
  const Tensor value = shard.value(), m = shard.state[kMean].tensor;
  const Tensor outer = stream.empty(value.shape(), m.dtype(), MemoryTag::workspace);
  const Tensor scaled = stream.empty(value.shape(), m.dtype(), MemoryTag::workspace);
  const double beta = settings_.shampoo_beta;
  kernels::soap_moments(stream, {m, shard.gradient(), outer, scaled}, step, {settings_.adam_beta1, 1 - beta});
  const MatrixPieces pieces(shard.part);
  const auto [rows, columns] = pieces.whole();
  const Sides sides(settings_, rows, columns);
  const int64_t held = value.elements() / pieces.count();
  for (int64_t i = 0; i < pieces.count(); ++i) {
    const auto part = [&](const Tensor& flat, int64_t each) {
      return flat.defined() ? flat.narrow(0, i * each, each) : Tensor();
    };
    const Tensor v = part(shard.state[kSquares].tensor, rows * columns).reshape({rows, columns});
    const Tensor factors = part(shard.state[kSoapFactors].tensor, sides.elements());
    const Tensor bases = part(shard.state[kBases].tensor, sides.elements());
    const Tensor left = sides.left_of(bases, rows), right = sides.right_of(bases, columns);
    {
      const Tensor mean = rotated(stream, pieces.gathered(stream, m, i), left, right, false);
      const Tensor gradient = rotated(stream, pieces.gathered(stream, scaled, i), left, right, false);
      const Tensor turned = stream.empty({rows, columns}, m.dtype(), MemoryTag::workspace);
      kernels::soap_direction(
          stream, turned, v, gradient, mean, step,
          {settings_.adam_beta1, settings_.adam_beta2, settings_.adam_eps, shard.weight_decay, rate});
      const Tensor direction = pieces.piece(stream, rotated(stream, turned, left, right, true));
      kernels::apply_direction(stream, {part(value, held), part(shard.remainder, held), direction}, step,
                               {.weight_decay = shard.weight_decay, .rate = rate, .first = 2});
    }
    const Tensor whole = pieces.gathered(stream, outer, i);
    const auto renew = [&](const Tensor& factor, const Tensor& basis, int dim) {
      if (!factor.defined()) return;
      kernels::decay_factor(stream, factor, step, beta);
      kernels::gemm(stream, factor, Write::accumulate, whole, dim == 0 ? Transpose::no : Transpose::yes, whole,
                    dim == 0 ? Transpose::yes : Transpose::no);
      kernels::renew_basis(stream, basis, v, factor, step, {settings_.precondition_frequency, dim, update_number()});
    };
    renew(sides.left_of(factors, rows), left, 0);
    renew(sides.right_of(factors, columns), right, 1);
  }
}

Tensor Soap::rotated(Stream& stream, const Tensor& x, const Tensor& left, const Tensor& right, bool back) const {
  Tensor turned = x;
  const auto product = [&](const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b) {
    const Tensor to = stream.empty(x.shape(), x.dtype(), MemoryTag::workspace);
    kernels::gemm(stream, to, Write::overwrite, a, transpose_a, b, transpose_b);
    turned = to;
  };
  if (left.defined()) product(left, back ? Transpose::yes : Transpose::no, turned, Transpose::no);
  if (right.defined()) product(turned, Transpose::no, right, back ? Transpose::no : Transpose::yes);
  return turned;
}

}  // namespace

const OptimizerTraits kSoapTraits = {.name = "soap",
                                     .needs = ShardBy::matrices,
                                     .state = soap_state,
                                     .cost = soap_cost,
                                     .make = make_group_optimizer<Soap>,
                                     .eager = true};

}  // namespace witan
