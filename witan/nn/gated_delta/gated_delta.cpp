#include "witan/nn/gated_delta/gated_delta.h"

#include <algorithm>
#include <cmath>

#include "witan/kernels/linear_attention/short_convolution.h"
#include "witan/ops/linear/linear.h"
#include "witan/ops/linear_attention/gated_delta.h"
#include "witan/ops/shape/shape.h"

namespace witan {
namespace {

using kernels::CacheRun;
using kernels::CacheTokens;

// A_log begins as the logarithm of a number between these (Mamba-2; Megatron-LM's A_init_range).
constexpr double kLeastDecay = 1, kMostDecay = 16;

// Projections to one number of each head, which 8-bit products have no tiles for.
Builder unquantised(const Builder& builder) {
  Builder wide = builder;
  wide.fp8 = nullptr;
  return wide;
}

// The taps of a channel, with the variance of torch.nn.Conv1d.
Initialization taps_init(const Builder& builder, int64_t taps) {
  if (builder.torch) return Builder::torch_uniform(taps);
  return {.std = 1 / std::sqrt(3 * static_cast<double>(taps))};
}

// Runs the rule over a step's tokens: sequences that begin in chunks, others token by token.
class DeltaStep {
 public:
  // o [1, T, H dv]
  DeltaStep(Stream& stream, const Tensor& o, const kernels::DeltaInputs& in, const DeltaState& state)
      : stream_(stream), o_(o), in_(in), state_(state) {}

  void run(const CacheTokens& tokens) {
    int64_t token = 0;
    for (size_t i = 0, next = 0; i < tokens.runs.size(); i = next) {
      next = i + 1;
      const bool begins = is_prompt(tokens.runs[i]);
      while (!begins && next < tokens.runs.size() && !is_prompt(tokens.runs[next])) ++next;
      const CacheTokens some = tokens.part(i, next - i, token);
      if (begins)
        whole(some.runs.front(), token);
      else
        continued(some, token);
      token += some.rows.elements();
    }
  }

 private:
  static bool is_prompt(const CacheRun& run) { return run.past == 0 && run.count > 1; }

  void whole(const CacheRun& run, int64_t token) {
    const auto part = [&](const Tensor& x) { return x.narrow(1, token, run.count); };
    kernels::gated_delta_forward(stream_, part(o_), state_.states.narrow(0, run.row, 1),
                                 {part(in_.qkv), part(in_.g), part(in_.beta), {}, in_.heads});
  }
  void continued(const CacheTokens& tokens, int64_t token) {
    const auto part = [&](const Tensor& x) {
      return x.reshape({x.size(1), x.size(2)}).narrow(0, token, tokens.rows.elements());
    };
    kernels::gated_delta_decode(stream_, part(o_), state_.states,
                                {part(in_.qkv), part(in_.g), part(in_.beta), {}, in_.heads}, tokens);
  }

  Stream& stream_;
  const Tensor& o_;
  const kernels::DeltaInputs& in_;
  const DeltaState& state_;
};

}  // namespace

DeltaState::DeltaState(Stream& stream, int64_t rows, const kernels::DeltaHeads& heads, int64_t taps, DType dtype)
    : states(stream.empty({rows, heads.values, heads.key_dim, heads.value_dim}, accumulator(dtype))),
      tails(stream.empty({rows, taps - 1, heads.channels()}, dtype)) {}

void DeltaState::copy_row(Stream& stream, int64_t from, int64_t to) {
  for (const Tensor* of : {&states, &tails}) stream.copy(of->narrow(0, to, 1), of->narrow(0, from, 1));
}

GatedDelta::GatedDelta(const Builder& builder, const GatedDeltaSpec& spec, const MixerModel& model)
    : TokenMixer(builder.path),
      axis_(builder.tensor),
      heads_{builder.share(spec.num_key_heads), builder.share(spec.num_value_heads), spec.key_head_dim,
             spec.value_head_dim},
      taps_(spec.conv_kernel_dim),
      epsilon_(model.norm.norm_epsilon),
      projections_(builder.side_by_side({heads_.channels(), model.width})),
      q_proj_((builder / "q_proj").at(projections_, 0, heads_.key_channels()), model.width, spec.heads().key_channels(),
              builder.init_std, Bias::none, Divided::out()),
      k_proj_((builder / "k_proj").at(projections_, heads_.key_channels(), heads_.key_channels()), model.width,
              spec.heads().key_channels(), builder.init_std, Bias::none, Divided::out()),
      v_proj_((builder / "v_proj").at(projections_, 2 * heads_.key_channels(), heads_.value_channels()), model.width,
              spec.heads().value_channels(), builder.init_std, Bias::none, Divided::out()),
      z_proj_(builder / "z_proj", model.width, spec.heads().value_channels(), builder.init_std, Bias::none,
              Divided::out()),
      b_proj_(unquantised(builder / "b_proj"), model.width, spec.num_value_heads, builder.init_std, Bias::none,
              Divided::out()),
      a_proj_(unquantised(builder / "a_proj"), model.width, spec.num_value_heads, builder.init_std, Bias::none,
              Divided::out()),
      o_proj_(builder / "o_proj", spec.heads().value_channels(), model.width, builder.output_init_std, Bias::none,
              Divided::in()) {
  for (Linear* child : {&q_proj_, &k_proj_, &v_proj_, &z_proj_, &b_proj_, &a_proj_, &o_proj_}) add_child(*child);
  const Builder factors = builder.of_kind(ParameterKind::norms);
  const int64_t keys = spec.heads().key_channels(), values = spec.heads().value_channels();
  const auto taps = [&](const char* name, int64_t channels) {
    return &add_parameter(factors, name, {channels, taps_}, taps_init(builder, taps_), true, TensorSplit{0});
  };
  convolutions_ = {taps("q_conv.weight", keys), taps("k_conv.weight", keys), taps("v_conv.weight", values)};
  Builder wide = factors;
  wide.dtype = accumulator(builder.dtype);
  A_log_ = &add_parameter(wide, "A_log", {spec.num_value_heads}, Initialization::log_uniform(kLeastDecay, kMostDecay),
                          false, TensorSplit{0});
  dt_bias_ =
      &add_parameter(wide, "dt_bias", {spec.num_value_heads}, {Initialization::Kind::ones}, false, TensorSplit{0});
  norm_ = &add_parameter(wide.of_own_part(), "norm.weight", {spec.value_head_dim}, {Initialization::Kind::ones}, false);
}

Var GatedDelta::project(Tape& tape, const Var& x, const Randomness& randomness) {
  const std::array all = {&q_proj_, &k_proj_, &v_proj_};
  if (std::ranges::none_of(all, [](const Linear* of) { return of->multiplies_in_fp8() || of->has_adapters(); }))
    return ops::joined_linear(
        tape, x,
        {tape.parameter(q_proj_.weight()), tape.parameter(k_proj_.weight()), tape.parameter(v_proj_.weight())});
  const Var q = q_proj_.forward(tape, x, randomness), k = k_proj_.forward(tape, x, randomness);
  return ops::join_columns(tape, ops::join_columns(tape, q, k), v_proj_.forward(tape, x, randomness));
}

std::vector<Var> GatedDelta::taps(Tape& tape) {
  std::vector<Var> all;
  for (Parameter* of : convolutions_) all.push_back(tape.parameter(*of));
  return all;
}

Var GatedDelta::output(Tape& tape, const Var& x, const Var& o, const Randomness& randomness) {
  const Shape of_heads{o.size(0), o.size(1), heads_.values, heads_.value_dim};
  const Var z = ops::reshape(tape, z_proj_.forward(tape, x, randomness), of_heads);
  const Var gated = ops::gated_rmsnorm(tape, ops::reshape(tape, o, of_heads), z, tape.parameter(*norm_), epsilon_);
  return o_proj_.forward(tape, ops::reshape(tape, gated, o.shape()), randomness);
}

Var GatedDelta::forward(Tape& tape, const Var& x, const Positions& where, const Randomness& randomness,
                        const Var& /*embedded*/) {
  const ModuleScope scope(tape, *this);
  const Var tokens = axis_ ? to_sharded_layer(tape, x, *axis_) : x;  // [B, S, D]
  const Tensor ids = where.hints.one_sequence_per_row ? Tensor() : where.sequence_ids;
  const Var qkv = ops::short_convolution(tape, project(tape, tokens, randomness), taps(tape), {}, ids);
  const ops::DeltaGates gates =
      ops::delta_gates(tape, a_proj_.forward(tape, tokens, randomness), b_proj_.forward(tape, tokens, randomness),
                       tape.parameter(*A_log_), tape.parameter(*dt_bias_));
  return output(tape, tokens, ops::gated_delta_rule(tape, qkv, gates, ids, heads_), randomness);
}

Var GatedDelta::decode(Tape& tape, const Var& x, const Positions& where, SequenceState& state,
                       const Var& /*embedded*/) {
  const ModuleScope scope(tape, *this);
  const auto& kept = dynamic_cast<const DeltaState&>(state);
  Stream& stream = tape.stream();
  const Tensor projected = project(tape, x, {}).value(), qkv = stream.empty_like(projected);
  const int64_t T = projected.size(1);
  int64_t first = 0;
  for (const Var& w : taps(tape)) {
    const auto part = [&](const Tensor& of) { return of.reshape({T, heads_.channels()}).narrow(1, first, w.size(0)); };
    kernels::short_convolution_decode(stream, part(qkv), kept.tails.narrow(2, first, w.size(0)), part(projected),
                                      w.value(), {}, where.cached);
    first += w.size(0);
  }
  const ops::DeltaGates gates = ops::delta_gates(tape, a_proj_.forward(tape, x), b_proj_.forward(tape, x),
                                                 tape.parameter(*A_log_), tape.parameter(*dt_bias_));
  const Tensor o = stream.empty({1, T, heads_.value_channels()}, x.dtype());
  DeltaStep(stream, o, {qkv, gates.g.value(), gates.beta.value(), {}, heads_}, kept).run(where.cached);
  return output(tape, x, tape.constant(o), {});
}

std::unique_ptr<SequenceState> GatedDelta::make_state(Stream& stream, const StateSize& size, DType dtype) const {
  return std::make_unique<DeltaState>(stream, size.rows, heads_, taps_, dtype);
}

}  // namespace witan
