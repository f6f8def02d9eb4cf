// SOAP (Vyas et al., SOAP: Improving and Stabilizing Shampoo using Adam, arXiv 2409.11321), with the order of
// operations of nikhilvyas/SOAP: Adam in the eigenbases of Shampoo's factors. Of a matrix [R, C]:
//
//   M = b1 M + (1 - b1) G           rotated: g = Q_L G Q_R^T, m = Q_L M Q_R^T, whose rows are the basis vectors
//   v = b2 v + (1 - b2) g^2         N = Q_L^T (m^ / (sqrt(v^) + adam_eps)) Q_R
//   W = (W - lr N) (1 - lr weight_decay)
//   L = b L + (1 - b) G G^T, R likewise (b = shampoo_beta); and every precondition_frequency updates the bases take a
//   step of power iteration with them, by QR (kernels/optimizer/soap.h)
//
// The first update makes the bases from its gradient and changes nothing else; bias corrections count from the second.
// A dim above max_preconditioner_dim has no factor and is not rotated, nor is a vector.
//
// v belongs to the bases: it is state of the whole matrix, as the factors are. Where tensor-parallel ranks divide a
// matrix, each gathers G and M, does the whole matrix's work, and takes its piece of N.
#pragma once

#include "witan/optim/group_optimizer.h"
#include "witan/optim/matrix_pieces.h"

namespace witan {

class Soap final : public GroupOptimizer {
 public:
  static const OptimizerTraits kTraits;

  Soap(const ParamGroup& group, size_t index, Stream& stream, std::vector<ParameterShard> parameter_shards);

 private:
  void update_shards(Stream& stream, const Tensor& step, int64_t rate) override;
  void update_shard(Stream& stream, const Shard& shard, const Tensor& step, int64_t rate) const;
  // x [R, C] rotated into the bases or, `back`, out of them; x itself where a matrix has none.
  Tensor rotated(Stream& stream, const Tensor& x, const Tensor& left, const Tensor& right, bool back) const;

  OptimizerSettings settings_;
};

}  // namespace witan
