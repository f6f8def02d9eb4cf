// Distributed Shampoo (Gupta et al., 2018; Shi et al., A Distributed Data-Parallel PyTorch Implementation of the
// Distributed Shampoo Optimizer, arXiv 2309.06497), with the order of operations of facebookresearch/optimizers. Of
// each block G of a matrix's gradient (optim/shampoo_blocks.h):
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
// with gate and up in it; a vector has one factor, R, and is of order 1. Dims are not merged.
//
// Where tensor-parallel ranks divide a matrix, each of them gathers gradient, F and grafted update, does the whole
// matrix's work, and takes its piece.
#pragma once

#include "witan/kernels/optimizer/inverse_root.h"
#include "witan/optim/group_optimizer.h"
#include "witan/optim/matrix_pieces.h"
#include "witan/optim/shampoo_blocks.h"

namespace witan {

class Shampoo final : public GroupOptimizer {
 public:
  static const OptimizerTraits kTraits;

  // Throws ConfigError where the stream's device does not have the root.
  Shampoo(const ParamGroup& group, size_t index, Stream& stream, std::vector<ParameterShard> parameter_shards);

 private:
  void update_shards(Stream& stream, const Tensor& step, int64_t rate) override;
  void update_shard(Stream& stream, const Shard& shard, const Tensor& step, int64_t rate) const;
  // The direction of one matrix, [rows, columns], into `direction`.
  struct Matrix {
    Tensor outer, filtered, grafted, factors, roots;
  };
  void precondition(Stream& stream, const Matrix& matrix, const Tensor& direction, const Tensor& step) const;
  void renew(Stream& stream, const Tensor& factor, const Tensor& root, const Tensor& outer, bool left, int order,
             const Tensor& step) const;

  OptimizerSettings settings_;
};

}  // namespace witan
