#include "witan/nn/lora.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace witan {
namespace {

// For a factor that every rank has whole and uses with its own share of the other factor: its gradient is a summand,
// however the residual stream is placed.
Builder of_own_share(const Builder& builder) {
  Builder own = builder;
  if (builder.tensor_ranks() > 1) own.tensor.emplace(builder.tensor->group, Placement::shard(1), builder.tensor->keeps);
  return own;
}

// The input of A is whole on every rank or, if the matrix is not divided, part of the residual stream.
Builder of_dropout(const Builder& builder, const Divided& divided) {
  Builder own = builder / "lora_dropout";
  if (divided.by != Divided::By::none) own.tensor.reset();
  return own;
}

}  // namespace

double LoraConfig::scale() const {
  const auto r = static_cast<double>(rank);
  return alpha / (rank_stabilized ? std::sqrt(r) : r);
}

bool LoraConfig::adapts(std::string_view name) const {
  return std::ranges::find(targets, name) != targets.end();
}

const std::vector<std::string>& lora_target_names() {
  static const std::vector<std::string> names = {"q_proj",
                                                 "k_proj",
                                                 "v_proj",
                                                 "o_proj",
                                                 "g_proj",
                                                 "z_proj",
                                                 "x_proj",
                                                 "B_proj",
                                                 "C_proj",
                                                 "q_a_proj",
                                                 "q_b_proj",
                                                 "kv_a_proj_with_mqa",
                                                 "kv_b_proj",
                                                 "wq_b",
                                                 "wk",
                                                 "weights_proj",
                                                 "f_a_proj",
                                                 "f_b_proj",
                                                 "g_a_proj",
                                                 "g_b_proj",
                                                 "gate_proj",
                                                 "up_proj",
                                                 "down_proj",
                                                 "per_layer_input_gate",
                                                 "per_layer_projection",
                                                 "per_layer_model_projection"};
  return names;
}

bool is_adapter(std::string_view parameter) {
  const std::string_view last = parameter.substr(parameter.rfind('.') + 1);
  return last == kLoraA || last == kLoraB || last == kLoraMagnitude;
}

// Uniform in +-1 / sqrt(in).
Initialization lora_init(int64_t in) {
  constexpr double kThirds = 3;
  return {.std = 1 / std::sqrt(kThirds * static_cast<double>(in))};
}

Adapter::Adapter(const Builder& builder, int64_t in, int64_t out, const Divided& divided, int64_t first)
    : Module(builder.path),
      scale_(builder.lora->scale()),
      first_(first),
      dropout_(of_dropout(builder, divided), builder.lora->dropout),
      a_(add_parameter(divided.by == Divided::By::out ? of_own_share(builder) : builder, kLoraA,
                       {builder.lora->rank, in}, lora_init(in), true,
                       divided.by == Divided::By::in ? TensorSplit{1} : TensorSplit{})),
      b_(add_parameter(divided.by == Divided::By::in ? of_own_share(builder) : builder, kLoraB,
                       {out, builder.lora->rank}, {Initialization::Kind::zeros}, true,
                       divided.by == Divided::By::out ? TensorSplit{0} : TensorSplit{})) {
  require<ConfigError>(builder.lora->dropout == 0 || divided.by != Divided::By::in || builder.tensor_ranks() == 1,
                       "lora_dropout = ", builder.lora->dropout, ": tensor-parallel ranks each have some inputs of ",
                       builder.path,
                       "; set lora_dropout = 0, tensor_model_parallel_size = 1, or leave it out of "
                       "lora_target_modules");
  if (!builder.lora->magnitudes) return;
  change_ = &add_parameter(
      (divided.by == Divided::By::in ? of_own_share(builder) : builder).of_kind(ParameterKind::norms), kLoraMagnitude,
      {out}, {Initialization::Kind::zeros}, false, divided.by == Divided::By::out ? TensorSplit{0} : TensorSplit{});
  if (divided.by == Divided::By::in && builder.tensor_ranks() > 1) sums_squares_ = &builder.tensor->group;
}

void Adapter::attach(const ModelServices& services) {
  if (services.adapters_off) off_ = services.adapters_off;
  Module::attach(services);
}

Var Adapter::add_to(Tape& tape, Var y, const Var& x, const Randomness& randomness) {
  if (is_off()) return y;
  return ops::add_low_rank(tape, std::move(y), dropout_.forward(tape, x, randomness), tape.parameter(a_),
                           tape.parameter(b_), scale_, first_);
}

ops::Magnitude Adapter::magnitude(Tape& tape, const Var& weight) {
  const Var a = tape.parameter(a_), b = tape.parameter(b_);
  const Tensor rows = weight.value().narrow(0, first_, b.size(0));
  const Tensor squares = ops::row_squares(tape.stream(), rows, a.value(), b.value(), scale_);
  if (sums_squares_ != nullptr) sums_squares_->all_reduce(tape.stream(), squares);
  return {tape.parameter(*change_), squares, first_};
}

}  // namespace witan
