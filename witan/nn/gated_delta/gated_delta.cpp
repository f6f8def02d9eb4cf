#include "witan/nn/gated_delta/gated_delta.h"

#include "witan/nn/mixer/chunk_steps.h"
#include "witan/nn/mixer/step_runs.h"
#include "witan/ops/norm/norm.h"
#include "witan/ops/pointwise/elementwise.h"
#include "witan/ops/shape/shape.h"

namespace witan {
namespace {

// A_log begins as the logarithm of a number between these (Mamba-2; Megatron-LM's A_init_range).
constexpr double kLeastDecay = 1, kMostDecay = 16;
// softplus(dt_bias) of channels begins between these, as in flash-linear-attention.
constexpr double kLeastChannelStep = 0.001, kMostChannelStep = 0.1;

// The rule over a step's tokens; o [1, T, H dv].
void run_delta_step(Stream& stream, const Tensor& o, const kernels::DeltaInputs& in, const DeltaState& state,
                    const kernels::CacheTokens& tokens) {
  const auto decode = [&](const kernels::CacheTokens& some, int64_t first) {
    const auto part = [&](const Tensor& x) {
      return x.reshape({x.size(1), x.size(2)}).narrow(0, first, some.rows.elements());
    };
    kernels::gated_delta_decode(stream, part(o), state.states, {part(in.qkv), part(in.g), part(in.beta), {}, in.heads},
                                some, state.chunk);
  };
  if (state.chunk.qkv.defined() && stream.plans_for_cuda()) {
    const auto forward = [&](const ChunkPass& pass) {
      const kernels::DeltaInputs inputs{pass.inputs[0], pass.inputs[1], pass.inputs[2], {}, in.heads, pass.first};
      kernels::gated_delta_forward(stream, pass.o, pass.last, inputs, kernels::delta_memory(stream, inputs, false));
    };
    const auto rows = [](const Tensor& x) { return x.reshape({x.size(1), x.size(2)}); };
    const kernels::DeltaChunk& kept = state.chunk;
    ChunkSteps steps(stream, rows(o), state.states,
                     {{rows(in.qkv), kept.qkv}, {rows(in.g), kept.g}, {rows(in.beta), kept.beta}}, forward);
    return steps.run(tokens);
  }
  if (state.chunk.qkv.defined()) return decode(tokens, 0);
  for_step_runs(
      tokens,
      [&](const kernels::CacheRun& run, int64_t first) {
        const auto part = [&](const Tensor& x) { return x.narrow(1, first, run.count); };
        const kernels::DeltaInputs inputs{part(in.qkv), part(in.g), part(in.beta), {}, in.heads};
        kernels::gated_delta_forward(stream, part(o), state.states.narrow(0, run.row, 1), inputs);
      },
      decode);
}

kernels::DeltaChunk make_chunk(Stream& stream, const StateSize& size, const kernels::DeltaHeads& heads, int64_t decays,
                               DType dtype) {
  if (!size.chunks) return {};
  const auto empty = [&](int64_t channels, DType of) {
    return stream.zeros({size.rows, kernels::kDeltaChunk, channels}, of);
  };
  const DType wide = accumulator(dtype);
  return {empty(heads.channels(), dtype), empty(decays, wide), empty(heads.values, wide),
          empty(heads.value_channels(), wide)};
}

}  // namespace

DeltaState::DeltaState(Stream& stream, const StateSize& size, const kernels::DeltaHeads& heads, int64_t decays,
                       int64_t taps, DType dtype)
    : states(stream.empty({size.rows, heads.values, heads.key_dim, heads.value_dim}, accumulator(dtype))),
      tails(stream.empty({size.rows, taps - 1, heads.channels()}, dtype)),
      chunk(make_chunk(stream, size, heads, decays, dtype)) {}

std::vector<Tensor> DeltaState::kept() const {
  std::vector<Tensor> all = {states, tails, chunk.qkv, chunk.g, chunk.beta, chunk.u};
  std::erase_if(all, [](const Tensor& x) { return !x.defined(); });
  return all;
}

int64_t DeltaState::bytes() const {
  int64_t sum = 0;
  for (const Tensor& x : kept()) sum += x.bytes();
  return sum;
}

void DeltaState::copy_row(Stream& stream, int64_t from, int64_t to) {
  for (const Tensor& x : kept()) stream.copy(x.narrow(0, to, 1), x.narrow(0, from, 1));
}

GatedDelta::GatedDelta(const Builder& builder, const GatedDeltaSpec& spec, const MixerModel& model,
                       const ContextAxis& context)
    : TokenMixer(builder.path),
      axis_(builder.tensor),
      whole_(context),
      heads_{builder.share(spec.num_key_heads), builder.share(spec.num_value_heads), spec.key_head_dim,
             spec.value_head_dim},
      own_{whole_.own(heads_.keys), whole_.own(heads_.values), heads_.key_dim, heads_.value_dim},
      taps_(spec.conv_kernel_dim),
      strongest_(spec.negative_eigenvalues ? 2 : 1),
      epsilon_(spec.norm_epsilon > 0 ? spec.norm_epsilon : model.norm.norm_epsilon),
      decays_(spec.channel_decays ? spec.key_head_dim : 1),
      projections_(builder.side_by_side({heads_.channels(), model.width})),
      q_proj_((builder / "q_proj").at(projections_, 0, heads_.key_channels()), model.width, spec.heads().key_channels(),
              builder.init_std, Bias::none, Divided::out()),
      k_proj_((builder / "k_proj").at(projections_, heads_.key_channels(), heads_.key_channels()), model.width,
              spec.heads().key_channels(), builder.init_std, Bias::none, Divided::out()),
      v_proj_((builder / "v_proj").at(projections_, 2 * heads_.key_channels(), heads_.value_channels()), model.width,
              spec.heads().value_channels(), builder.init_std, Bias::none, Divided::out()),
      b_proj_(unquantised(builder / "b_proj"), model.width, spec.num_value_heads, builder.init_std, Bias::none,
              Divided::out()),
      o_proj_(builder / "o_proj", spec.heads().value_channels(), model.width, builder.output_init_std, Bias::none,
              Divided::in()) {
  const auto linear = [&](std::optional<Linear>& to, const Builder& named, int64_t in, int64_t out, Divided divided) {
    to.emplace(named, in, out, builder.init_std, Bias::none, divided);
  };
  const int64_t key_channels = spec.heads().key_channels(), value_channels = spec.heads().value_channels();
  if (spec.channel_decays) {
    linear(f_a_proj_, builder / "f_a_proj", model.width, spec.key_head_dim, {});
    linear(f_b_proj_, builder / "f_b_proj", spec.key_head_dim, key_channels, Divided::out());
    linear(g_a_proj_, builder / "g_a_proj", model.width, spec.value_head_dim, {});
    linear(g_b_proj_, builder / "g_b_proj", spec.value_head_dim, value_channels, Divided::out());
  } else {
    linear(z_proj_, builder / "z_proj", model.width, value_channels, Divided::out());
    linear(a_proj_, unquantised(builder / "a_proj"), model.width, spec.num_value_heads, Divided::out());
  }
  for (Linear* child : {&q_proj_, &k_proj_, &v_proj_}) add_child(*child);
  if (z_proj_) add_child(*z_proj_);
  add_child(b_proj_);
  for (std::optional<Linear>* child : {&a_proj_, &f_a_proj_, &f_b_proj_, &g_a_proj_, &g_b_proj_})
    if (*child) add_child(**child);
  add_child(o_proj_);
  const Builder factors = builder.of_kind(ParameterKind::norms);
  const auto filter = [&](const char* name, int64_t channels, int64_t heads) {
    convolutions_.add(heads, add_parameter(factors, name, {channels, taps_}, ShortConvolutions::init(builder, taps_),
                                           true, TensorSplit{0}));
  };
  filter("q_conv.weight", key_channels, heads_.keys);
  filter("k_conv.weight", key_channels, heads_.keys);
  filter("v_conv.weight", value_channels, heads_.values);
  Builder wide = factors;
  wide.dtype = accumulator(builder.dtype);
  A_log_ = &add_parameter(wide, "A_log", {spec.num_value_heads}, Initialization::log_uniform(kLeastDecay, kMostDecay),
                          false, TensorSplit{0});
  dt_bias_ = &add_parameter(wide, "dt_bias", {spec.decays()},
                            spec.channel_decays ? Initialization::inverse_softplus(kLeastChannelStep, kMostChannelStep)
                                                : Initialization{Initialization::Kind::ones},
                            false, TensorSplit{0});
  norm_ = &add_parameter((spec.channel_decays ? factors : wide).of_own_part(), "norm.weight", {spec.value_head_dim},
                         {Initialization::Kind::ones}, false);
}

Var GatedDelta::project(Tape& tape, const Var& x, const Randomness& randomness) {
  return project_together(tape, x, {&q_proj_, &k_proj_, &v_proj_}, randomness);
}

Var GatedDelta::through(Tape& tape, const Var& x, Linear& down, Linear& up, const Randomness& randomness) {
  const Var narrow = down.forward(tape, x, randomness);
  return up.forward(tape, axis_ ? to_sharded_layer(tape, narrow, *axis_) : narrow, randomness);
}

ops::DeltaGates GatedDelta::gates(Tape& tape, const Var& x, const Var& tokens, const Randomness& randomness) {
  std::vector<Var> ab = {Var(), b_proj_.forward(tape, tokens, randomness)};
  if (a_proj_) {
    ab = whole_.gather(tape, {a_proj_->forward(tape, tokens, randomness), ab[1]});
  } else {
    ab[0] = whole_.gather(tape, through(tape, x, *f_a_proj_, *f_b_proj_, randomness),
                          {HeadSection{heads_.values, heads_.key_dim}});
    ab[1] = whole_.gather(tape, std::vector{ab[1]}).front();
  }
  const Var A_log = whole_.own_rows(tape, *A_log_, heads_.values);
  ops::DeltaGates gates = ops::delta_gates(tape, ab[0], ab[1], A_log, whole_.own_rows(tape, *dt_bias_, heads_.values));
  if (strongest_ != 1) gates.beta = ops::scale(tape, gates.beta, strongest_);
  return gates;
}

Var GatedDelta::output(Tape& tape, const Var& x, const Var& tokens, const Var& o, const Randomness& randomness) {
  const Shape of_heads{o.size(0), o.size(1), heads_.values, heads_.value_dim};
  const Var heads = ops::reshape(tape, o, of_heads), weight = tape.parameter(*norm_);
  Var gated;
  if (z_proj_) {
    const Var z = ops::reshape(tape, z_proj_->forward(tape, tokens, randomness), of_heads);
    gated = ops::gated_rmsnorm(tape, heads, z, weight, epsilon_);
  } else {
    const Var z = ops::reshape(tape, through(tape, x, *g_a_proj_, *g_b_proj_, randomness), of_heads);
    gated = ops::sigmoid_gate(tape, ops::rmsnorm(tape, heads, weight, epsilon_), z);
  }
  return o_proj_.forward(tape, ops::reshape(tape, gated, o.shape()), randomness);
}

Var GatedDelta::forward(Tape& tape, const Var& x, const Positions& where, const Randomness& randomness,
                        const Var& /*embedded*/) {
  const ModuleScope scope(tape, *this);
  const Var tokens = axis_ ? to_sharded_layer(tape, x, *axis_) : x;  // [B, S, D]
  const Tensor ids = whole_.sequence_ids(tape.stream(), where);
  const HeadSection keys{heads_.keys, heads_.key_dim}, values{heads_.values, heads_.value_dim};
  const Var projected = whole_.gather(tape, project(tape, tokens, randomness), {keys, keys, values});
  const Var qkv = convolutions_.forward(tape, projected, ids, whole_);
  const Var o = ops::gated_delta_rule(tape, qkv, gates(tape, x, tokens, randomness), ids, own_);
  return output(tape, x, tokens, whole_.scatter(tape, o, own_.values), randomness);
}

Var GatedDelta::decode(Tape& tape, const Var& x, const Positions& where, SequenceState& state,
                       const Var& /*embedded*/) {
  const ModuleScope scope(tape, *this);
  const auto& kept = dynamic_cast<const DeltaState&>(state);
  Stream& stream = tape.stream();
  const Var tokens = axis_ ? to_sharded_layer(tape, x, *axis_) : x;  // [1, T, D]
  const Tensor qkv = convolutions_.decode(tape, project(tape, tokens, {}).value(), kept.tails, where.cached);
  const ops::DeltaGates of_heads = gates(tape, x, tokens, {});
  const Tensor o = stream.empty({1, qkv.size(1), heads_.value_channels()}, x.dtype());
  run_delta_step(stream, o, {qkv, of_heads.g.value(), of_heads.beta.value(), {}, heads_}, kept, where.cached);
  return output(tape, x, tokens, tape.constant(o), {});
}

std::unique_ptr<SequenceState> GatedDelta::make_state(Stream& stream, const StateSize& size, DType dtype) const {
  return std::make_unique<DeltaState>(stream, size, heads_, heads_.values * decays_, taps_, dtype);
}

}  // namespace witan
