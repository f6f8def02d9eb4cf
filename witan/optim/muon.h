// Muon (Jordan et al., 2024; Liu et al., Muon is Scalable for LLM Training, arXiv 2502.16982) and NorMuon (Li et al.,
// arXiv 2510.05491), for a model's inner matrices:
//
//   B <- momentum B + G,  U = NewtonSchulz(G + momentum B, or B)          (optim/newton_schulz.h)
//   NorMuon:  v <- beta2 v + (1 - beta2) mean_k U[r,k]^2,  U <- ||U||_F V / ||V||_F,  V[r] = U[r] / (sqrt(v[r]) + 1e-8)
//   W <- W - lr (scale U + weight_decay W)
//
// Each matrix [out, in] of a model is orthogonalized as a whole, however ranks divide it: q, k and v separately, every
// expert of a stack, and the gate and up matrices of one parameter separately (TensorSplit::blocks).
//
// Matrices of one shape are processed in batches. If tensor-parallel ranks divide the matrices, an all-to-all gives
// each rank its share of the batch as whole matrices, and another returns the pieces, so that no work is done twice.
#pragma once

#include <optional>
#include <vector>

#include "witan/kernels/common/device_table.h"
#include "witan/kernels/optimizer/muon.h"
#include "witan/optim/group_optimizer.h"
#include "witan/optim/newton_schulz.h"

namespace witan {

// The factor of an orthogonal matrix with these rows (out) and columns (in), by muon_scale_mode:
//   moonlight        muon_extra_scale_factor sqrt(max(rows, columns)): 0.2 gives about the root mean square of AdamW's
//                    updates, so that both use the same learning rate (Megatron-LM: spectral)
//   shape_scaling    sqrt(max(1, rows / columns)), as Jordan's Muon
//   unit_rms_norm    sqrt(rows / columns), as Bernstein's Scion
//   none             1
double muon_scale(const OptimizerSettings& settings, int64_t rows, int64_t columns);

class Muon final : public GroupOptimizer {
 public:
  enum class Kind : uint8_t { muon, normuon };

  // Throws ConfigError for a parameter that is not a matrix, or whose rows tensor-parallel ranks divide unevenly.
  Muon(Kind kind, const ParamGroup& group, size_t index, Stream& stream, std::vector<ParameterShard> parameter_shards);

 private:
  // The size and dtype of matrices, and how ranks divide them.
  struct Form {
    MatrixSize whole, piece;
    bool columns_divided = false;  // else rows, if pieces are not whole
    DType dtype;
    Group* pieces = nullptr;

    bool operator==(const Form& other) const;
    int64_t ranks() const;
  };
  // Matrices of a shard, one after the other.
  struct Run {
    size_t shard;
    int64_t first, matrices;  // within the shard
  };
  struct Batch {
    Form form;
    std::vector<Run> runs;
    int64_t matrices = 0;
    std::optional<kernels::DeviceTable> momentum_table, update_table;  // once runs are known
  };

  Form form_of(Stream& stream, const ParameterShard& part) const;
  static int64_t batch_size(Stream& stream, const Form& form, int64_t matrices);
  void plan_batches(Stream& stream);
  void update_shards(Stream& stream, const Tensor& step, int64_t rate) override;
  void update_batch(Stream& stream, Batch& batch, const Tensor& step, int64_t rate);
  std::vector<kernels::MuonItem> items_of(const Batch& batch, const Tensor& direction, const Tensor& orthogonal) const;
  void normalize_rows(Stream& stream, const Batch& batch, const Tensor& orthogonal, const Tensor& step) const;

  Kind kind_;
  OptimizerSettings settings_;
  NewtonSchulz iteration_;
  std::vector<Batch> batches_;
};

}  // namespace witan
