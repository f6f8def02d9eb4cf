#include "witan/nn/gated_delta/gated_delta.h"

#include "witan/nn/mixer/chunk_steps.h"
#include "witan/nn/mixer/step_runs.h"
#include "witan/ops/pointwise/elementwise.h"
#include "witan/ops/shape/shape.h"

namespace witan {
namespace {

// A_log begins as the logarithm of a number between these (Mamba-2; Megatron-LM's A_init_range).
constexpr double kLeastDecay = 1, kMostDecay = 16;

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
      kernels::gated_delta_forward(stream, pass.o, pass.last, inputs,
                                   kernels::delta_memory(stream, inputs.qkv, in.heads, false));
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

kernels::DeltaChunk make_chunk(Stream& stream, const StateSize& size, const kernels::DeltaHeads& heads, DType dtype) {
  if (!size.chunks) return {};
  const auto empty = [&](int64_t channels, DType of) {
    return stream.zeros({size.rows, kernels::kDeltaChunk, channels}, of);
  };
  const DType wide = accumulator(dtype);
  return {empty(heads.channels(), dtype), empty(heads.values, wide), empty(heads.values, wide),
          empty(heads.value_channels(), wide)};
}

}  // namespace

DeltaState::DeltaState(Stream& stream, const StateSize& size, const kernels::DeltaHeads& heads, int64_t taps,
                       DType dtype)
    : states(stream.empty({size.rows, heads.values, heads.key_dim, heads.value_dim}, accumulator(dtype))),
      tails(stream.empty({size.rows, taps - 1, heads.channels()}, dtype)),
      chunk(make_chunk(stream, size, heads, dtype)) {}

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
  const auto filter = [&](const char* name, int64_t channels, int64_t heads) {
    convolutions_.add(heads, add_parameter(factors, name, {channels, taps_}, ShortConvolutions::init(builder, taps_),
                                           true, TensorSplit{0}));
  };
  filter("q_conv.weight", keys, heads_.keys);
  filter("k_conv.weight", keys, heads_.keys);
  filter("v_conv.weight", values, heads_.values);
  Builder wide = factors;
  wide.dtype = accumulator(builder.dtype);
  A_log_ = &add_parameter(wide, "A_log", {spec.num_value_heads}, Initialization::log_uniform(kLeastDecay, kMostDecay),
                          false, TensorSplit{0});
  dt_bias_ =
      &add_parameter(wide, "dt_bias", {spec.num_value_heads}, {Initialization::Kind::ones}, false, TensorSplit{0});
  norm_ = &add_parameter(wide.of_own_part(), "norm.weight", {spec.value_head_dim}, {Initialization::Kind::ones}, false);
}

Var GatedDelta::project(Tape& tape, const Var& x, const Randomness& randomness) {
  return project_together(tape, x, {&q_proj_, &k_proj_, &v_proj_}, randomness);
}

ops::DeltaGates GatedDelta::gates(Tape& tape, const Var& x, const Randomness& randomness) {
  const std::vector<Var> ab =
      whole_.gather(tape, {a_proj_.forward(tape, x, randomness), b_proj_.forward(tape, x, randomness)});
  const Var A_log = whole_.own_rows(tape, *A_log_, heads_.values);
  ops::DeltaGates gates = ops::delta_gates(tape, ab[0], ab[1], A_log, whole_.own_rows(tape, *dt_bias_, heads_.values));
  if (strongest_ != 1) gates.beta = ops::scale(tape, gates.beta, strongest_);
  return gates;
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
  const Tensor ids = whole_.sequence_ids(tape.stream(), where);
  const HeadSection keys{heads_.keys, heads_.key_dim}, values{heads_.values, heads_.value_dim};
  const Var projected = whole_.gather(tape, project(tape, tokens, randomness), {keys, keys, values});
  const Var qkv = convolutions_.forward(tape, projected, ids, whole_);
  const Var o = ops::gated_delta_rule(tape, qkv, gates(tape, tokens, randomness), ids, own_);
  return output(tape, tokens, whole_.scatter(tape, o, own_.values), randomness);
}

Var GatedDelta::decode(Tape& tape, const Var& x, const Positions& where, SequenceState& state,
                       const Var& /*embedded*/) {
  const ModuleScope scope(tape, *this);
  const auto& kept = dynamic_cast<const DeltaState&>(state);
  Stream& stream = tape.stream();
  const Var tokens = axis_ ? to_sharded_layer(tape, x, *axis_) : x;  // [1, T, D]
  const Tensor qkv = convolutions_.decode(tape, project(tape, tokens, {}).value(), kept.tails, where.cached);
  const ops::DeltaGates of_heads = gates(tape, tokens, {});
  const Tensor o = stream.empty({1, qkv.size(1), heads_.value_channels()}, x.dtype());
  run_delta_step(stream, o, {qkv, of_heads.g.value(), of_heads.beta.value(), {}, heads_}, kept, where.cached);
  return output(tape, tokens, tape.constant(o), {});
}

std::unique_ptr<SequenceState> GatedDelta::make_state(Stream& stream, const StateSize& size, DType dtype) const {
  return std::make_unique<DeltaState>(stream, size, heads_, taps_, dtype);
}

}  // namespace witan
