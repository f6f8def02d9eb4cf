#include "witan/nn/mamba2/mamba2.h"

#include "witan/nn/mixer/chunk_steps.h"
#include "witan/nn/mixer/step_runs.h"

namespace witan {
namespace {

// A_log begins as the logarithm of a number between the first two, and steps between the others (Mamba-2; Megatron-LM's
// A_init_range, dt_min and dt_max).
constexpr double kLeastRate = 1, kMostRate = 16, kLeastInitialStep = 0.001, kMostInitialStep = 0.1;

// The recurrence over a step's tokens; y [1, T, H P].
void run_ssd_step(Stream& stream, const Tensor& y, const kernels::SsdInputs& in, const SsdState& state,
                  const kernels::CacheTokens& tokens) {
  const auto decode = [&](const kernels::CacheTokens& some, int64_t first) {
    const auto part = [&](const Tensor& x) {
      return x.reshape({x.size(1), x.size(2)}).narrow(0, first, some.rows.elements());
    };
    kernels::ssd_decode(stream, part(y), state.states, {part(in.xbc), part(in.dt), part(in.a), in.D, {}, in.heads},
                        some, state.chunk);
  };
  if (state.chunk.xbc.defined() && stream.plans_for_cuda()) {
    const auto forward = [&](const ChunkPass& pass) {
      kernels::ssd_forward(stream, pass.o, pass.last,
                           {pass.inputs[0], pass.inputs[1], pass.inputs[2], in.D, {}, in.heads, pass.first});
    };
    const auto rows = [](const Tensor& x) { return x.reshape({x.size(1), x.size(2)}); };
    const kernels::SsdChunk& kept = state.chunk;
    ChunkSteps steps(stream, rows(y), state.states,
                     {{rows(in.xbc), kept.xbc}, {rows(in.dt), kept.dt}, {rows(in.a), kept.a}}, forward);
    return steps.run(tokens);
  }
  if (state.chunk.xbc.defined()) return decode(tokens, 0);
  for_step_runs(
      tokens,
      [&](const kernels::CacheRun& run, int64_t first) {
        const auto part = [&](const Tensor& x) { return x.narrow(1, first, run.count); };
        kernels::ssd_forward(stream, part(y), state.states.narrow(0, run.row, 1),
                             {part(in.xbc), part(in.dt), part(in.a), in.D, {}, in.heads});
      },
      decode);
}

kernels::SsdChunk make_ssd_chunk(Stream& stream, const StateSize& size, const kernels::SsdHeads& heads, DType dtype) {
  if (!size.chunks) return {};
  const auto empty = [&](int64_t channels, DType of) {
    return stream.zeros({size.rows, kernels::kSsdChunk, channels}, of);
  };
  const DType wide = accumulator(dtype);
  return {empty(heads.channels(), dtype), empty(heads.heads, wide), empty(heads.heads, wide)};
}

}  // namespace

SsdState::SsdState(Stream& stream, const StateSize& size, const kernels::SsdHeads& heads, int64_t taps, DType dtype)
    : states(stream.empty({size.rows, heads.heads, heads.state_dim, heads.head_dim}, accumulator(dtype))),
      tails(stream.empty({size.rows, taps - 1, heads.channels()}, dtype)),
      chunk(make_ssd_chunk(stream, size, heads, dtype)) {}

std::vector<Tensor> SsdState::kept() const {
  std::vector<Tensor> all = {states, tails, chunk.xbc, chunk.dt, chunk.a};
  std::erase_if(all, [](const Tensor& x) { return !x.defined(); });
  return all;
}

int64_t SsdState::bytes() const {
  int64_t sum = 0;
  for (const Tensor& x : kept()) sum += x.bytes();
  return sum;
}

void SsdState::copy_row(Stream& stream, int64_t from, int64_t to) {
  for (const Tensor& x : kept()) stream.copy(x.narrow(0, to, 1), x.narrow(0, from, 1));
}

Mamba2::Mamba2(const Builder& builder, const Mamba2Spec& spec, const MixerModel& model, const ContextAxis& context)
    : TokenMixer(builder.path),
      axis_(builder.tensor),
      whole_(context),
      heads_{builder.share(spec.num_heads), builder.share(spec.num_groups), spec.head_dim, spec.state_dim},
      own_{whole_.own(heads_.heads), whole_.own(heads_.groups), heads_.head_dim, heads_.state_dim},
      taps_(spec.conv_kernel_dim),
      least_step_(spec.least_step),
      epsilon_(model.norm.norm_epsilon),
      projections_(builder.side_by_side({heads_.channels(), model.width})),
      x_proj_((builder / "x_proj").at(projections_, 0, heads_.inner()), model.width, spec.heads().inner(),
              builder.init_std, Bias::none, Divided::out()),
      B_proj_((builder / "B_proj").at(projections_, heads_.inner(), heads_.of_groups()), model.width,
              spec.heads().of_groups(), builder.init_std, Bias::none, Divided::out()),
      C_proj_((builder / "C_proj").at(projections_, heads_.inner() + heads_.of_groups(), heads_.of_groups()),
              model.width, spec.heads().of_groups(), builder.init_std, Bias::none, Divided::out()),
      z_proj_(builder / "z_proj", model.width, spec.heads().inner(), builder.init_std, Bias::none, Divided::out()),
      dt_proj_(unquantised(builder / "dt_proj"), model.width, spec.num_heads, builder.init_std, Bias::none,
               Divided::out()),
      o_proj_(builder / "o_proj", spec.heads().inner(), model.width, builder.output_init_std, Bias::none,
              Divided::in()) {
  for (Linear* child : {&x_proj_, &B_proj_, &C_proj_, &z_proj_, &dt_proj_, &o_proj_}) add_child(*child);
  const Builder factors = builder.of_kind(ParameterKind::norms);
  const auto filter = [&](const std::string& name, int64_t channels, int64_t heads) {
    Parameter& taps = add_parameter(factors, name + ".weight", {channels, taps_},
                                    ShortConvolutions::init(builder, taps_), true, TensorSplit{0});
    Parameter* bias = nullptr;
    if (spec.conv_bias)
      bias = &add_parameter(factors, name + ".bias", {channels}, {Initialization::Kind::zeros}, false, TensorSplit{0});
    convolutions_.add(heads, taps, bias);
  };
  filter("x_conv", spec.heads().inner(), heads_.heads);
  filter("B_conv", spec.heads().of_groups(), heads_.groups);
  filter("C_conv", spec.heads().of_groups(), heads_.groups);
  Builder wide = factors;
  wide.dtype = accumulator(builder.dtype);
  const auto of_heads = [&](const char* name, const Initialization& init) {
    return &add_parameter(wide, name, {spec.num_heads}, init, false, TensorSplit{0});
  };
  A_log_ = of_heads("A_log", Initialization::log_uniform(kLeastRate, kMostRate));
  D_ = of_heads("D", {Initialization::Kind::ones});
  dt_bias_ = of_heads("dt_bias", Initialization::inverse_softplus(kLeastInitialStep, kMostInitialStep));
  norm_ =
      &add_parameter(wide, "norm.weight", {spec.heads().inner()}, {Initialization::Kind::ones}, false, TensorSplit{0});
}

Var Mamba2::project(Tape& tape, const Var& u, const Randomness& randomness) {
  return project_together(tape, u, {&x_proj_, &B_proj_, &C_proj_}, randomness);
}

ops::SsdGates Mamba2::gates(Tape& tape, const Var& u, const Randomness& randomness) {
  const Var dt = whole_.gather(tape, {dt_proj_.forward(tape, u, randomness)}).front();
  const Var A_log = whole_.own_rows(tape, *A_log_, heads_.heads);
  return ops::ssd_gates(tape, dt, A_log, whole_.own_rows(tape, *dt_bias_, heads_.heads), least_step_);
}

Var Mamba2::output(Tape& tape, const Var& u, const Var& y, const Randomness& randomness) {
  const Var z = z_proj_.forward(tape, u, randomness);
  return o_proj_.forward(tape, ops::gated_group_rmsnorm(tape, y, z, tape.parameter(*norm_), heads_.groups, epsilon_),
                         randomness);
}

Var Mamba2::forward(Tape& tape, const Var& x, const Positions& where, const Randomness& randomness,
                    const Var& /*embedded*/) {
  const ModuleScope scope(tape, *this);
  const Var u = axis_ ? to_sharded_layer(tape, x, *axis_) : x;  // [B, S, D]
  const Tensor ids = whole_.sequence_ids(tape.stream(), where);
  const HeadSection inner{heads_.heads, heads_.head_dim}, groups{heads_.groups, heads_.state_dim};
  const Var projected = whole_.gather(tape, project(tape, u, randomness), {inner, groups, groups});
  const Var xbc = convolutions_.forward(tape, projected, ids, whole_);
  const ops::SsdGates of_heads = gates(tape, u, randomness);
  const Var y =
      ops::ssd(tape, xbc, of_heads, whole_.own_rows(tape, *D_, heads_.heads), ids, own_, !where.hints.batch_invariant);
  return output(tape, u, whole_.scatter(tape, y, own_.heads), randomness);
}

Var Mamba2::decode(Tape& tape, const Var& x, const Positions& where, SequenceState& state, const Var& /*embedded*/) {
  const ModuleScope scope(tape, *this);
  const auto& kept = dynamic_cast<const SsdState&>(state);
  Stream& stream = tape.stream();
  const Var u = axis_ ? to_sharded_layer(tape, x, *axis_) : x;  // [1, T, D]
  const Tensor xbc = convolutions_.decode(tape, project(tape, u, {}).value(), kept.tails, where.cached);
  const ops::SsdGates of_heads = gates(tape, u, {});
  const Tensor y = stream.empty({1, xbc.size(1), heads_.inner()}, x.dtype());
  run_ssd_step(stream, y, {xbc, of_heads.dt.value(), of_heads.a.value(), tape.parameter(*D_).value(), {}, heads_}, kept,
               where.cached);
  return output(tape, u, tape.constant(y), {});
}

std::unique_ptr<SequenceState> Mamba2::make_state(Stream& stream, const StateSize& size, DType dtype) const {
  return std::make_unique<SsdState>(stream, size, heads_, taps_, dtype);
}

}  // namespace witan
