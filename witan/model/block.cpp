#include "witan/model/block.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "witan/kernels/common/blocks.h"
#include "witan/kernels/pointwise/activation_moments.h"
#include "witan/ops/pointwise/elementwise.h"

namespace witan {
namespace {

std::optional<KeySharing> sharing_of(const MixerSpec& mixer) {
  const auto* const heads = std::get_if<MultiHeadSpec>(&mixer);
  return heads != nullptr ? heads->sharing : std::nullopt;
}

}  // namespace

Block::Block(const Builder& builder, const ModelConfig& config, const LayerSpec& layer, const ModelAxes& axes)
    : Module(builder.path),
      sharing_(sharing_of(layer.mixer)),
      recompute_all_(config.recompute() == Recompute::full),
      residual_multiplier_(config.residual_multiplier),
      recompute_(read_recompute_modules(config)),
      axis_(builder.tensor),
      unit_(builder.unit),
      mixer_(mixer_kind(layer.mixer)
                 .make(builder / mixer_kind(layer.mixer).name(), config.around_mixers(), axes.sequences())),
      mixer_dropout_(builder / "attention_dropout", config.hidden_dropout),
      mlp_dropout_(builder / "mlp_dropout", config.hidden_dropout) {
  const auto scalar = [&](const char* name, double value) {
    return &add_parameter(builder.of_kind(ParameterKind::norms), name, {1}, Initialization::constant(value), false);
  };
  if (layer.skip_from) skip_scale_ = scalar("skip_scale", 1);
  if (layer.embedding_residual) {
    residual_scale_ = scalar("residual_scale", 1);
    embedding_scale_ = scalar("embedding_scale", 0);
  }
  if (config.layer_scalar)
    layer_scalar_ = &add_buffer(builder, "layer_scalar", {1}, builder.dtype, 1, BufferSpec::Rule::replicated);
  // The norm at the only place, before or after the half, has the plain name if that is its place in all layers.
  const auto add_norms = [&](HalfNorms& norms, const char* name, const char* after) {
    const bool post = layer.norm_placement == "post", both = layer.norm_placement == "both";
    const char* const of_output = config.norm_placement == "post" ? name : after;
    if (!post) add_child(norms.input.emplace(builder / name, config.norm, config.hidden_size));
    if (post || both) add_child(norms.output.emplace(builder / of_output, config.norm, config.hidden_size));
  };
  const auto add_streams = [&](std::optional<HyperConnection>& streams, const char* name) {
    if (config.streams.any())
      add_child(streams.emplace(builder / name, config.streams, config.hidden_size, HyperConnection::Place::half,
                                config.norm.norm_epsilon));
  };
  if (mixer_) {
    add_streams(mixer_streams_, "attention_hc");
    add_norms(mixer_norms_, "attention_norm", "attention_post_norm");
    add_child(*mixer_);
  }
  if (config.hidden_size_per_layer_input > 0) add_child(own_gate_.emplace(builder, config));
  if (!layer.has_mlp()) return;
  add_streams(mlp_streams_, "mlp_hc");
  add_norms(mlp_norms_, "mlp_norm", "mlp_post_norm");
  if (!layer.moe || layer.parallel_mlp)
    add_child(
        mlp_.emplace(builder / "mlp", layer.parallel_mlp.value_or(layer.mlp), config.hidden_size, config.mlp_bias()));
  if (layer.parallel_mlp)
    for (const auto& [norm, name] :
         {std::pair{&mlp_out_norm_, "mlp_out_norm"}, {&moe_norm_, "moe_norm"}, {&moe_out_norm_, "moe_out_norm"}})
      add_child(norm->emplace(builder / name, config.norm, config.hidden_size));
  if (layer.moe)
    add_child(moe_.emplace(builder / "moe",
                           layer.table_of_experts ? config.moe.with_table(config.vocab_size) : config.moe, layer.mlp,
                           config.hidden_size, axes, config.norm));
}

Var Residual::sum(Tape& tape) const {
  return added.defined() ? ops::add(tape, x, added) : x;
}

// A block that is recomputed keeps only its input, so the sum x + added is formed first. Keys and values that it
// borrows are inputs too, and those that it lends are outputs.
BlockOutput Block::forward(Tape& tape, Residual x, const BlockInputs& beside, const Positions& where,
                           const TokenSource& source, Dropping dropping) {
  if (!recompute_all_) return compute(tape, std::move(x), beside, where, source, dropping);
  const RouterRecord names = moe_ ? moe_->names() : RouterRecord();
  std::vector<Var> inputs = {x.sum(tape)};
  std::vector<Var BlockInputs::*> given;  // the inputs that the block has
  for (Var BlockInputs::*const input :
       {&BlockInputs::embedding, &BlockInputs::skip, &BlockInputs::values, &BlockInputs::own}) {
    if (!(beside.*input).defined()) continue;
    given.push_back(input);
    inputs.push_back(beside.*input);
  }
  x = {};
  const bool borrows = sharing_ && sharing_->borrows, lends = sharing_ && !borrows;
  if (borrows) {
    const LentHeads::Heads& lent = where.lent->of_layer.at(sharing_->of);
    inputs.insert(inputs.end(), {lent.keys, lent.values});
  }
  Positions apart = where;  // from the tape around the segment
  apart.lent = nullptr;
  const auto again = [this, given, borrows, lends, apart, source, dropping, names](Tape& on,
                                                                                   const std::vector<Var>& in) {
    BlockInputs here;
    for (size_t i = 0; i < given.size(); ++i) here.*given[i] = in[i + 1];
    Positions own = apart;
    if (sharing_) own.lent = std::make_shared<LentHeads>();
    if (borrows) own.lent->of_layer[sharing_->of] = {in[in.size() - 2], in.back()};
    const BlockOutput block = compute(on, {in[0], {}}, here, own, source, dropping);
    std::vector<Var> out = {block.x.sum(on)};
    if (lends) {
      const LentHeads::Heads& lent = own.lent->of_layer.at(sharing_->of);
      out.insert(out.end(), {lent.keys, lent.values});
    }
    std::ranges::copy(block.router.values(on, names), std::back_inserter(out));
    return out;
  };
  const auto out = recomputed(tape, inputs, again, offload_);
  if (lends) where.lent->of_layer[sharing_->of] = {out[1], out[2]};
  return {{out[0], {}}, names.with(std::span(out).subspan(lends ? 3 : 1))};
}

BlockOutput Block::compute(Tape& tape, Residual in, const BlockInputs& beside, const Positions& where,
                           const TokenSource& source, Dropping dropping) {
  const ModuleScope scope(tape, *this);
  const UnitGuard unit(tape, units_, unit_);
  in = joined(tape, std::move(in), beside);
  if (!mixer_) return feed_forward(tape, in, beside.own, source, dropping);
  const HalfInput half = read(tape, Half::mixer, in);
  in = {};
  Var attended = mixer_->forward(tape, half.input, where, source.randomness, beside.values);
  measure(tape, source, Activation::attention, attended);
  const Var mixed = added(tape, Half::mixer, std::move(attended));
  return feed_forward(tape, write(tape, half, mixer_dropout_.forward(tape, mixed, source.randomness)), beside.own,
                      source, dropping);
}

Block::HalfInput Block::read(Tape& tape, Half half, const Residual& in) {
  std::optional<Norm>& norm = norms_of(half).input;
  if (std::optional<HyperConnection>& streams = streams_of(half)) {
    auto [y, mix] = streams->read(tape, in.x);
    return {in.x, norm ? norm->forward(tape, y, recompute_.layernorm) : y, mix};
  }
  if (norm) {
    auto [sum, normed] = norm->forward_sum(tape, in.x, in.added, recompute_.layernorm);
    return {sum, normed, {}};
  }
  const Var sum = in.sum(tape);
  return {sum, sum, {}};
}

Residual Block::write(Tape& tape, const HalfInput& half, Var more) {
  if (half.mix.defined()) return {ops::write_streams(tape, half.x, more, half.mix), {}};
  return {half.x, std::move(more)};
}

Var Block::added(Tape& tape, Half half, Var y) {
  std::optional<Norm>& norm = norms_of(half).output;
  const Var more = norm ? norm->forward(tape, y, recompute_.layernorm) : std::move(y);
  return residual_multiplier_ == 1 ? more : ops::scale(tape, more, residual_multiplier_);
}

Residual Block::joined(Tape& tape, Residual x, const BlockInputs& beside) {
  if (skip_scale_) x = {ops::scaled_sum(tape, {x.sum(tape), {}}, {beside.skip, tape.parameter(*skip_scale_)}), {}};
  if (residual_scale_)
    x = {ops::scaled_sum(tape, {x.sum(tape), tape.parameter(*residual_scale_)},
                         {beside.embedding, tape.parameter(*embedding_scale_)}),
         {}};
  return x;
}

Var Block::mlp_forward(Tape& tape, const Var& x, const Randomness& randomness) {
  if (!recompute_.mlp) return mlp_->forward(tape, x, recompute_.mlp_act, randomness);
  const auto again = [this, randomness](Tape& on, const std::vector<Var>& in) {
    return std::vector{mlp_->forward(on, in[0], recompute_.mlp_act, randomness)};
  };
  return recomputed(tape, {x}, again)[0];
}

MoeOutput Block::moe_forward(Tape& tape, const Var& x, const Var& routed, const TokenSource& source,
                             Dropping dropping) {
  const MoeRecompute remade{recompute_.moe_act, recompute_.mlp_act, recompute_.shared_experts};
  if (!recompute_.moe) return moe_->forward(tape, x, remade, dropping, source, routed);
  const RouterRecord names = moe_->names();
  std::vector<Var> inputs = {x};
  if (routed.defined()) inputs.push_back(routed);
  const auto again = [this, remade, dropping, source, names](Tape& on, const std::vector<Var>& in) {
    const MoeOutput moe = moe_->forward(on, in[0], remade, dropping, source, in.size() > 1 ? in[1] : Var());
    std::vector<Var> out = {moe.y};
    std::ranges::copy(moe.record.values(on, names), std::back_inserter(out));
    return out;
  };
  const auto out = recomputed(tape, inputs, again);
  return {out[0], names.with(std::span(out).subspan(1))};
}

MoeOutput Block::parallel_forward(Tape& tape, const Var& x, const Var& input, const TokenSource& source,
                                  Dropping dropping) {
  const Var dense = mlp_out_norm_->forward(tape, mlp_forward(tape, input, source.randomness), recompute_.layernorm);
  MoeOutput moe = moe_forward(tape, moe_norm_->forward(tape, x, recompute_.layernorm), x, source, dropping);
  moe.y = ops::add(tape, dense, moe_out_norm_->forward(tape, moe.y, recompute_.layernorm));
  return moe;
}

Residual Block::scaled(Tape& tape, Residual x) {
  if (!layer_scalar_) return x;
  const Var factor = tape.constant(layer_scalar_->value());
  ops::ScaledTerm added;
  if (x.added.defined()) added = {x.added, factor};
  return {ops::scaled_sum(tape, {x.x, factor}, added), {}};
}

Residual Block::with_own(Tape& tape, Residual x, const Var& own, const Randomness& randomness) {
  if (!own_gate_) return x;
  const Var sum = x.sum(tape);
  return {sum, own_gate_->forward(tape, sum, own, recompute_, randomness)};
}

BlockOutput Block::feed_forward(Tape& tape, const Residual& in, const Var& own, const TokenSource& source,
                                Dropping dropping) {
  if (!moe_ && !mlp_) {
    const Residual out = scaled(tape, with_own(tape, in, own, source.randomness));
    measure(tape, source, Activation::residual, out.x, out.added);
    return {out, {}};
  }
  const HalfInput half = read(tape, Half::mlp, in);
  const auto to_stream = [&](const Var& y) {
    measure(tape, source, Activation::mlp, y);
    const Var more = mlp_dropout_.forward(tape, added(tape, Half::mlp, y), source.randomness);
    Residual after = scaled(tape, with_own(tape, write(tape, half, more), own, source.randomness));
    measure(tape, source, Activation::residual, after.x, after.added);
    return after;
  };
  if (!moe_) return {to_stream(mlp_forward(tape, half.input, source.randomness)), {}};
  MoeOutput moe = mlp_ ? parallel_forward(tape, half.x, half.input, source, dropping)
                       : moe_forward(tape, half.input, {}, source, dropping);
  return {to_stream(moe.y), std::move(moe.record)};
}

std::vector<Var> Block::mixer_weights(Tape& tape) {
  const ModuleScope scope(tape, *this);
  return lanes().projection_weights(tape);
}

void Block::gather(Tape& tape, Lane& lane, Half half) {
  const ModuleScope scope(tape, *this);
  const HalfInput in = read(tape, half, std::exchange(lane.stream, {}));
  lane.stream = {in.x, {}};
  lane.tokens = to_sharded_layer(tape, in.input, *axis_);
}

void Block::apply(Tape& tape, Lane& lane, Half half, const std::vector<Var>& mixer_weights) {
  const ModuleScope scope(tape, *this);
  const Var tokens = std::exchange(lane.tokens, {});
  lane.summands = half == Half::mixer ? lanes().summands(tape, tokens, lane.where, mixer_weights)
                                      : mlp_->summands(tape, tokens, recompute_.mlp_act);
}

void Block::add(Tape& tape, Lane& lane, Half half) {
  const ModuleScope scope(tape, *this);
  Var summands = std::exchange(lane.summands, {});
  Var sum = half == Half::mixer ? lanes().total(tape, std::move(summands)) : mlp_->total(tape, std::move(summands));
  lane.stream.added = added(tape, half, std::move(sum));
  if (half == Half::mlp) lane.stream = scaled(tape, std::move(lane.stream));
}

BlockOutput Block::apply_moe(Tape& tape, const Residual& x, const TokenSource& source, Dropping dropping) {
  const ModuleScope scope(tape, *this);
  return feed_forward(tape, x, {}, source, dropping);
}

void Block::measure(Tape& tape, const TokenSource& source, Activation of, const Var& x, const Var& added) {
  if (activations_ == nullptr || !tape.training_forward()) return;
  const Tensor moments = activations_->moments(number_, of);
  if (!moments.defined()) return;
  Tensor ids = source.sequence_ids;
  if (ids.defined() && x.size(1) < ids.size(1)) {  // ranks of the tensor axis divide the tokens
    const int64_t B = x.size(0), own = x.size(1);
    ids = tape.stream().empty({B, own}, DType::i32);
    kernels::take_part(tape.stream(), ids, source.sequence_ids.reshape({B, axis_->group.size(), own}),
                       axis_->group.rank());
  }
  kernels::activation_moments(tape.stream(), moments, x.value(), added.defined() ? added.value() : Tensor(), ids);
}

// The order of ops is that of compute(), so that the two round alike.
Residual Block::decode(Tape& tape, Residual in, const BlockInputs& beside, const Tensor& tokens, const Positions& where,
                       SequenceState* state) {
  const ModuleScope scope(tape, *this);
  const UnitGuard unit(tape, units_, unit_);
  in = joined(tape, std::move(in), beside);
  if (!mixer_) return feed_forward(tape, in, beside.own, {tokens, {}}, Dropping::never).x;
  const HalfInput half = read(tape, Half::mixer, in);
  in = {};
  const Var mixed = added(tape, Half::mixer, mixer_->decode(tape, half.input, where, *state, beside.values));
  return feed_forward(tape, write(tape, half, mixed), beside.own, {tokens, {}}, Dropping::never).x;
}

void Block::attach(const ModelServices& services) {
  if (services.units) units_ = services.units;
  if (services.offload) offload_ = {services.offload, !services.last};
  if (services.activations) {
    activations_ = services.activations;
    number_ = services.layer;
  }
  Module::attach(services);
}

std::unique_ptr<SequenceState> Block::make_state(Stream& stream, const StateSize& size, DType dtype) const {
  return mixer_ ? mixer_->make_state(stream, size, dtype) : nullptr;
}

}  // namespace witan
