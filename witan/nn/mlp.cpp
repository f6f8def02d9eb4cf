#include "witan/nn/mlp.h"

#include <optional>

#include "witan/autograd/recompute.h"
#include "witan/ops/pointwise/activation.h"

namespace witan {

Fields MlpConfig::fields() {
  return {
      Field{"ffn_hidden_size", &ffn_hidden_size,
            "FFN hidden size of dense layers, and of experts unless moe_ffn_hidden_size is set"}
          .between(1, 1 << 30),
      Field{"swiglu", &swiglu, "Use SwiGLU instead of GELU"},
      Field{"geglu", &geglu, "Use GEGLU, a GELU gate, instead of GELU; needs swiglu = false"},
      Field{"gelu_tanh", &gelu_tanh, "Use the tanh approximation of GELU"},
      Field{"squared_relu", &squared_relu, "Use squared ReLU instead of GELU; needs swiglu = false"},
      Field{"squared_reglu", &squared_reglu, "Use a gate of squared ReLU instead of GELU; needs swiglu = false"},
      Field{"silu", &silu, "Use SiLU, without a gate, instead of GELU; needs swiglu = false"},
      Field{"activation_func_clamp_value", &activation_func_clamp_value,
            "Clamp SwiGLU's inputs: the gate from above, the linear half on both sides; 0: no clamp"}
          .at_least(0),
      Field{"glu_linear_offset", &glu_linear_offset, "Added to the linear half of SwiGLU, after the clamp"},
      Field{"glu_activation_scale", &glu_activation_scale,
            "Scale of the gate within SwiGLU's sigmoid: 1.702 is quick GELU's"}
          .above(0),
  };
}

void MlpConfig::validate() const {
  require<ConfigError>(!swiglu || !geglu, "geglu = true and swiglu = true are two activations; set swiglu = false");
  const char* const gate = swiglu ? "swiglu" : geglu ? "geglu" : "squared_reglu";
  require<ConfigError>(!squared_reglu || (!swiglu && !geglu), "squared_reglu = true and ", gate,
                       " = true are two activations; set ", gate, " = false");
  require<ConfigError>(!squared_reglu || !gelu_tanh,
                       "squared_reglu = true and gelu_tanh = true are two activations; set gelu_tanh = false");
  require<ConfigError>(!squared_relu || !gated(), "squared_relu = true and ", gate, " = true are two activations; set ",
                       gate, " = false");
  require<ConfigError>(!squared_relu || !gelu_tanh,
                       "squared_relu = true and gelu_tanh = true are two activations; set gelu_tanh = false");
  require<ConfigError>(!silu || !(gated() || squared_relu || gelu_tanh), "silu = true and ",
                       gated()        ? gate
                       : squared_relu ? "squared_relu"
                                      : "gelu_tanh",
                       " = true are two activations; of these keys set one (SwiGLU is swiglu = true alone)");
  const auto of_swiglu = [&](const char* key, double value, double none) {
    require<ConfigError>(swiglu || value == none, key, " = ", value, " is a form of SwiGLU: set swiglu = true, or ",
                         key, " = ", none);
  };
  of_swiglu("activation_func_clamp_value", activation_func_clamp_value, 0);
  of_swiglu("glu_linear_offset", glu_linear_offset, 0);
  of_swiglu("glu_activation_scale", glu_activation_scale, 1);
}

Var activation(Tape& tape, const MlpConfig& config, const Var& h, const Var& row_weight, const RowGroups* groups,
               bool rematerialise) {
  // The groups are copied: recomputation happens after the caller has returned.
  const auto activate = [config, rows = groups ? std::optional(*groups) : std::nullopt](Tape& on,
                                                                                        const std::vector<Var>& in) {
    const Var weight = in.size() > 1 ? in[1] : Var();
    const RowGroups* within = rows ? &*rows : nullptr;
    if (config.swiglu) {
      const SwigluForm form{config.activation_func_clamp_value, config.glu_activation_scale, config.glu_linear_offset};
      return form.plain() ? ops::swiglu(on, in[0], weight, within)
                          : ops::clamped_swiglu(on, in[0], weight, within, form);
    }
    if (config.silu) return ops::silu(on, in[0], weight, within);
    if (config.squared_reglu) return ops::squared_reglu(on, in[0], weight, within);
    if (config.squared_relu) return ops::squared_relu(on, in[0], weight, within);
    const GeluKind kind = config.gelu_tanh ? GeluKind::tanh : GeluKind::exact;
    return config.geglu ? ops::geglu(on, in[0], weight, within, kind) : ops::gelu(on, in[0], weight, within, kind);
  };
  std::vector<Var> inputs = {h};
  if (row_weight.defined()) inputs.push_back(row_weight);
  return rematerialise ? rematerialised(tape, inputs, activate) : activate(tape, inputs);
}

Mlp::Mlp(const Builder& builder, const MlpConfig& config, int64_t width, Bias bias)
    : Module(builder.path),
      config_(config),
      axis_(builder.tensor),
      first_(builder / (config.gated() ? "gate_up_proj" : "up_proj"), width, config.first_rows(), builder.init_std,
             bias, Divided::out(config.first_blocks())),
      second_(builder / "down_proj", config.ffn_hidden_size, width, builder.output_init_std, bias, Divided::in()) {
  add_child(first_);
  add_child(second_);
}

Var Mlp::inner(Tape& tape, const Var& x, bool rematerialise, const Randomness& randomness) {
  return activation(tape, config_, first_.forward(tape, x, randomness), {}, nullptr, rematerialise);
}

Var Mlp::forward(Tape& tape, const Var& x, bool rematerialise, const Randomness& randomness) {
  const ModuleScope scope(tape, *this);
  const Var whole = axis_ ? to_sharded_layer(tape, x, *axis_) : x;
  return second_.forward(tape, inner(tape, whole, rematerialise, randomness), randomness);
}

Var Mlp::summands(Tape& tape, const Var& x, bool rematerialise, const Randomness& randomness) {
  const ModuleScope scope(tape, *this);
  return second_.summands(tape, inner(tape, x, rematerialise, randomness), randomness);
}

}  // namespace witan
