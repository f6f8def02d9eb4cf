#include "witan/model/per_layer_inputs.h"

#include <cmath>
#include <utility>

#include "witan/ops/pointwise/elementwise.h"
#include "witan/ops/shape/shape.h"

namespace witan {
namespace {

double root(int64_t size) {
  return std::sqrt(static_cast<double>(size));
}

// These products are too small to gain from operands in 8 bits.
Builder wide(Builder builder) {
  builder.fp8 = nullptr;
  return builder;
}

}  // namespace

PerLayerInputs::PerLayerInputs(const Builder& builder, const ModelConfig& config)
    : Module((builder / "per_layer_inputs").path),
      layers_(config.num_layers),
      axis_(builder.tensor),
      table_(builder / "per_layer_embedding", config.vocab_size, layers_ * config.hidden_size_per_layer_input,
             config.padded_vocab_size() - config.vocab_size),
      projection_(wide(builder / "per_layer_model_projection"), config.hidden_size,
                  layers_ * config.hidden_size_per_layer_input, builder.init_std),
      norm_(builder / "per_layer_projection_norm", config.norm, config.hidden_size_per_layer_input) {
  add_child(table_);
  add_child(projection_);
  add_child(norm_);
}

Var PerLayerInputs::rows(Tape& tape, const Tensor& ids) {
  const ModuleScope scope(tape, *this);
  Var rows = table_.forward(tape, ids);
  return axis_ ? from_sharded_layer(tape, std::move(rows), *axis_) : rows;
}

std::vector<Var> PerLayerInputs::forward(Tape& tape, const Var& rows, const Var& x, const Randomness& randomness) {
  const ModuleScope scope(tape, *this);
  const int64_t B = x.size(0), S = x.size(1), D = x.size(2), d = rows.size(2) / layers_;
  const Shape of_layers{B * S, layers_, d};
  const Var projected = ops::scale(tape, projection_.forward(tape, x, randomness), 1 / root(D));
  const Var normed = norm_.forward(tape, ops::reshape(tape, projected, of_layers), false);
  const Var both = ops::add(tape, ops::reshape(tape, ops::scale(tape, rows, root(d)), of_layers), normed);
  std::vector<Var> parts = ops::split_parts(tape, ops::scale(tape, both, 1 / root(2)));
  for (Var& part : parts) part = ops::reshape(tape, part, {B, S, d});
  return parts;
}

PerLayerGate::PerLayerGate(const Builder& builder, const ModelConfig& config)
    : Module((builder / "per_layer_gate").path),
      activation_(config.mlp),
      gate_(wide(builder / "per_layer_input_gate"), config.hidden_size, config.hidden_size_per_layer_input,
            builder.init_std),
      projection_(wide(builder / "per_layer_projection"), config.hidden_size_per_layer_input, config.hidden_size,
                  builder.output_init_std),
      norm_(builder / "per_layer_norm", config.norm, config.hidden_size) {
  add_child(gate_);
  add_child(projection_);
  add_child(norm_);
}

// The activation of MLPs takes the gate and what it multiplies side by side.
Var PerLayerGate::forward(Tape& tape, const Var& x, const Var& p, const RecomputeModules& remade,
                          const Randomness& randomness) {
  const ModuleScope scope(tape, *this);
  const Var side_by_side = ops::join_columns(tape, gate_.forward(tape, x, randomness), p);
  const Var gated = activation(tape, activation_, side_by_side, {}, nullptr, remade.mlp_act);
  return norm_.forward(tape, projection_.forward(tape, gated, randomness), remade.layernorm);
}

}  // namespace witan
