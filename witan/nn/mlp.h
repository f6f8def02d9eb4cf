// The feed-forward layer of a dense block: SwiGLU, GEGLU (Shazeer, 2020), a gate of squared ReLU, or GELU, SiLU or
// squared ReLU without a gate.
#pragma once

#include "witan/base/config/fields.h"
#include "witan/nn/linear.h"
#include "witan/tensor/ragged.h"

namespace witan {

struct MlpConfig {
  int64_t ffn_hidden_size = 512;
  bool swiglu = true;
  bool geglu = false;
  bool gelu_tanh = false;  // the tanh approximation of GELU
  bool squared_relu = false;
  bool squared_reglu = false;
  bool silu = false;                       // without a gate
  double activation_func_clamp_value = 0;  // of SwiGLU's inputs; 0: not clamped
  double glu_linear_offset = 0;            // added to the linear half of SwiGLU
  double glu_activation_scale = 1;         // within the sigmoid of SwiGLU

  Fields fields();
  void validate() const;  // throws ConfigError
  bool gated() const { return swiglu || geglu || squared_reglu; }
  // Rows of the first weight: gate and up in one matrix, gate first.
  int64_t first_rows() const { return first_blocks() * ffn_hidden_size; }
  int64_t first_blocks() const { return gated() ? 2 : 1; }
};

// The activation: h [rows, first_rows] -> [rows, F]. row_weight [rows] and groups as in ops/pointwise/activation.h, or
// undefined and null.
Var activation(Tape& tape, const MlpConfig& config, const Var& h, const Var& row_weight, const RowGroups* groups,
               bool rematerialise);

class Mlp : public Module {
 public:
  Mlp(const Builder& builder, const MlpConfig& config, int64_t width, Bias bias = Bias::none);

  // x [.., D] of the residual stream -> [.., D]
  Var forward(Tape& tape, const Var& x, bool rematerialise, const Randomness& randomness = {});
  // The forward without its exchanges: x of all ranks' tokens -> this rank's summands, which total() adds up into the
  // residual stream.
  Var summands(Tape& tape, const Var& x, bool rematerialise, const Randomness& randomness = {});
  Var total(Tape& tape, Var y) { return second_.total(tape, std::move(y)); }

  std::string_view cost_part() const override { return "mlp"; }

 private:
  Var inner(Tape& tape, const Var& x, bool rematerialise, const Randomness& randomness);  // the second map's input

  MlpConfig config_;
  std::optional<TensorAxis> axis_;
  Linear first_, second_;
};

}  // namespace witan
