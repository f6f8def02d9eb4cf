// The experts of one rank, E_local MLPs whose weights are stacked along dim 0, and the shared experts beside them.
#pragma once

#include <memory>
#include <optional>

#include "witan/kernels/grouped/block_sparse.h"
#include "witan/moe/config.h"
#include "witan/moe/dispatchers/dispatch.h"
#include "witan/nn/mlp.h"
#include "witan/ops/experts/expert_replicas.h"

namespace witan {

// How experts' products are computed. Results differ only by the order of sums.
enum class ExpertBackend : uint8_t {
  grouped,       // one kernel for all experts
  block_sparse,  // products with a block-sparse matrix of all experts' hidden units (kernels/grouped/block_sparse.h)
  sequential,    // one matrix product after the other, whose sizes the host reads
};
ExpertBackend expert_backend(const MoeConfig& config);

// The width of experts' inputs and outputs.
inline int64_t expert_width(const MoeConfig& config, int64_t width) {
  return config.moe_latent_size > 0 ? config.moe_latent_size : width;
}

class Experts : public Module {
 public:
  // gate_up_proj [E, 2F, D] (up_proj [E, F, D] without a gate), down_proj [E, D, F]; with moe_expert_add_bias also
  // gate_up_proj_bias [E, 2F] and down_proj_bias [E, D]. Each rank of the expert tensor axis has a share of F, and a
  // share of the D of down_proj_bias, so that the sum over ranks has that bias once. Adapters (nn/lora.h) of
  // builder.lora are gate_up_proj.lora_A [E, r, D] and .lora_B [E, 2F, r], one for gate and up together as they are one
  // matrix, and down_proj.lora_A [E, r, F] and .lora_B [E, D, r].
  Experts(const Builder& builder, const MoeConfig& moe, const MlpConfig& mlp, int64_t width);

  // rows [capacity, D], row_weights [capacity] -> [capacity, D], each row times its weight; if F is divided, a partial
  // sum of it. Tokens in place [T, D] give sums [T, D]: grouped products without adapters, and without a second bias,
  // then keep no row of width D for the backward.
  Var forward(Tape& tape, const Dispatched& in, const ExpertRows& rows, bool rematerialise);

  std::string_view cost_part() const override { return "experts"; }
  void attach(const ModelServices& services) override;

 private:
  // The rows of each expert.
  struct Places {
    const RowGroups& groups;
    const ops::ExpertReplicas& replicas;
    std::optional<kernels::BlockTopology> blocks;  // of these groups, for block-sparse products
  };
  // Factors of low rank beside a stack of matrices.
  struct Factors {
    Parameter *a = nullptr, *b = nullptr;  // null without an adapter
    double scale = 0;
  };
  Factors add_factors(const Builder& builder, const char* name, int64_t in, int64_t out, int64_t experts);
  void add_adapters(const Builder& builder, int64_t experts, int64_t width);
  Var product(Tape& tape, const Var& rows, const Places& places, Parameter& weight, const Factors& beside) const;
  Var activated(Tape& tape, const Dispatched& in, const Places& places, bool rematerialise);

  MlpConfig mlp_;
  ExpertBackend backend_;
  bool fuses_activation_;  // with the products, unless there are adapters
  Parameter &first_, &second_;
  std::shared_ptr<const ops::Fp8Quantiser> first_fp8_, second_fp8_;  // null: operands are not in 8 bits
  Parameter *first_bias_ = nullptr, *second_bias_ = nullptr;
  Factors first_factors_, second_factors_;
  const bool* adapters_off_ = nullptr;
  int64_t bias_begin_ = 0;  // the first column of D to which second_bias_ is added
};

namespace ops {
// The reference of grouped_linear: one plain matrix product for each expert's rows. Reads the counts on the host.
Var sequential_linear(Tape& tape, const Var& rows, const RowGroups& groups, const Var& w,
                      const ExpertReplicas& replicas = {});
}  // namespace ops

// Shared experts process every token beside the experts that it is routed to (Dai et al., "DeepSeekMoE", 2024): they
// are an MLP of the residual stream, divided over the tensor axis as a dense block's, whose output is added.

// The configuration of the shared experts as an MLP, from a routed expert's; ffn_hidden_size is 0 if there are none.
MlpConfig shared_experts_mlp(const MoeConfig& moe, MlpConfig expert);

class SharedExperts : public Mlp {
 public:
  // Several shared experts are one MLP, whose inner size moe_shared_expert_intermediate_size is the sum of theirs.
  // `mlp`: a routed expert's, whose activation is used. There are no biases, as in Megatron-LM. With
  // moe_shared_expert_gate also gate.weight [1, D].
  SharedExperts(const Builder& builder, const MoeConfig& moe, const MlpConfig& mlp, int64_t width);

  // x [.., D] of the residual stream -> [.., D]: y = mlp(x), with a gate times each token's sigmoid(gate x) (Qwen2-MoE,
  // arXiv:2407.10671).
  Var forward(Tape& tape, const Var& x, bool rematerialise, const Randomness& randomness = {});

 private:
  Parameter* gate_ = nullptr;
};

}  // namespace witan
