#include "witan/nn/linear.h"

#include <cassert>
#include <utility>

#include "witan/nn/lora.h"
#include "witan/ops/fp8/fp8_products.h"
#include "witan/ops/linear/linear.h"

namespace witan {
namespace {

constexpr const char* kGateAndUp = "gate_up_proj";

TensorSplit split_of_weight(Divided divided) {
  if (divided.by == Divided::By::none) return {};
  return divided.by == Divided::By::out ? TensorSplit{0, divided.blocks, divided.uneven} : TensorSplit{1};
}

}  // namespace

Linear::Linear(const Builder& builder, int64_t in, int64_t out, double std, Bias bias, Divided divided)
    : Module(builder.path),
      weight_(add_parameter(builder, "weight", {out, in},
                            Initialization::padded(builder.linear_init(std, in), divided.padding * in), true,
                            split_of_weight(divided))),
      fp8_(add_fp8(builder, weight_)) {
  assert(divided.padding == 0 || bias == Bias::none);
  if (divided.by == Divided::By::in && builder.tensor) sums_over_.emplace(*builder.tensor);
  if (bias == Bias::zeros)
    bias_ = &add_parameter(builder.of_kind(ParameterKind::biases), "bias", {out}, builder.bias_init(in), false,
                           divided.by == Divided::By::out ? TensorSplit{0, divided.blocks} : TensorSplit{});
  if (builder.lora) add_adapters(builder, in, out, divided);
}

Linear::~Linear() = default;

void Linear::add_adapters(const Builder& builder, int64_t in, int64_t out, const Divided& divided) {
  const std::string name = builder.path.substr(builder.path.rfind('.') + 1);
  const auto add = [&](const Builder& of, const Divided& like, int64_t outputs, int64_t first) {
    add_child(*adapters_.emplace_back(std::make_unique<Adapter>(of, in, outputs, like, first)));
  };
  if (builder.lora->adapts(name)) return add(builder, divided, out, 0);
  if (name != kGateAndUp) return;
  const int64_t half = weight_.shape()[0] / 2;  // of this rank
  for (const auto& [part, first] : {std::pair{"gate_proj", int64_t{0}}, {"up_proj", half}})
    if (builder.lora->adapts(part)) add(builder / part, Divided::out(), out / 2, first);
}

Var Linear::product(Tape& tape, const Var& x, const Randomness& randomness) {
  const Var weight = tape.parameter(weight_), bias = bias_ && !has_summands() ? tape.parameter(*bias_) : Var();
  const bool rescales = !adapters_.empty() && adapters_.front()->rescales(), adds_later = fp8_ || rescales;
  Var y = fp8_ ? ops::fp8_linear(tape, x, weight, fp8_) : ops::linear(tape, x, weight, adds_later ? Var() : bias);
  if (!rescales && fp8_ && bias.defined()) y = ops::add_bias(tape, y, bias);
  for (const auto& adapter : adapters_) y = adapter->add_to(tape, std::move(y), x, randomness);
  if (!rescales) return y;
  std::vector<ops::Magnitude> magnitudes;
  for (const auto& adapter : adapters_) magnitudes.push_back(adapter->magnitude(tape, weight));
  y = ops::rescale_columns(tape, y, magnitudes);
  return bias.defined() ? ops::add_bias(tape, y, bias) : y;
}

Var Linear::sum(Tape& tape, Var y) {
  return from_sharded_layer(tape, std::move(y), *sums_over_, bias_ ? tape.parameter(*bias_) : Var());
}

Var Linear::forward(Tape& tape, const Var& x, const Randomness& randomness) {
  const ModuleScope scope(tape, *this);
  Var y = product(tape, x, randomness);
  return has_summands() ? sum(tape, std::move(y)) : y;
}

Var Linear::summands(Tape& tape, const Var& x, const Randomness& randomness) {
  const ModuleScope scope(tape, *this);
  return product(tape, x, randomness);
}

Var Linear::total(Tape& tape, Var y) {
  const ModuleScope scope(tape, *this);
  return sum(tape, std::move(y));
}

}  // namespace witan
