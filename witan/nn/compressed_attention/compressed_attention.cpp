#include "witan/nn/compressed_attention/compressed_attention.h"

#include <cmath>

#include "witan/ops/attention/heads.h"
#include "witan/ops/linear/linear.h"
#include "witan/ops/norm/norm.h"
#include "witan/ops/shape/shape.h"

namespace witan {
namespace {

NormConfig rmsnorm_of(const MixerModel& model) {
  NormConfig norm;
  norm.norm_epsilon = model.norm.norm_epsilon;
  return norm;
}

// Projections to entries and choices keep the model's dtype, and have no adapters: their gates would have the name of
// an MLP's.
Builder of_entries(const Builder& builder) {
  Builder own = builder;
  own.fp8 = nullptr;
  own.lora = nullptr;
  return own;
}

kernels::SequencePlaces places_in_step(Stream& stream, const kernels::CacheTokens& tokens) {
  return {tokens.rows, stream.zeros({tokens.rows.elements()}, DType::i32), tokens.positions};
}

EntryCache entry_cache(Stream& stream, const StateSize& size, int64_t ratio, int64_t channels, int64_t values,
                       DType dtype) {
  const auto tail = [&] { return stream.empty({size.rows, 2 * ratio, values}, dtype); };
  return {stream.empty({size.rows, kernels::entry_slots(size.positions, ratio), channels}, dtype), {tail(), tail()}};
}

}  // namespace

CompressedState::CompressedState(Stream& stream, const StateSize& size, const CompressedSpec& spec, DType dtype)
    : limit(size.positions), keys(stream.empty({size.rows, size.positions, 1, spec.head_dim}, dtype)) {
  if (spec.ratio > 0) entries = entry_cache(stream, size, spec.ratio, spec.head_dim, spec.entry_values(), dtype);
  if (spec.sparse) indexed = entry_cache(stream, size, spec.ratio, spec.index_head_dim, spec.index_values(), dtype);
}

int64_t CompressedState::bytes() const {
  int64_t all = keys.bytes();
  for (const auto* cache : {&entries, &indexed})
    if (*cache) all += (*cache)->entries.bytes() + (*cache)->tails.kv.bytes() + (*cache)->tails.gate.bytes();
  return all;
}

void CompressedState::copy_row(Stream& stream, int64_t from, int64_t to) {
  const auto copy = [&](const Tensor& of) { stream.copy(of.narrow(0, to, 1), of.narrow(0, from, 1)); };
  copy(keys);
  for (const auto* cache : {&entries, &indexed}) {
    if (!*cache) continue;
    for (const Tensor* of : {&(*cache)->entries, &(*cache)->tails.kv, &(*cache)->tails.gate}) copy(*of);
  }
}

Compressor::Compressor(const Builder& builder, const MixerModel& model, int64_t ratio, int64_t channels, int64_t values,
                       const kernels::RopeArgs& rope)
    : Module(builder.path),
      ratio_(ratio),
      channels_(channels),
      overlap_(values > channels),
      rope_(rope),
      kv_proj_(of_entries(builder / "kv_proj"), model.width, values, builder.init_std),
      gate_proj_(of_entries(builder / "gate_proj"), model.width, values, builder.init_std),
      kv_norm_(builder / "kv_norm", rmsnorm_of(model), channels) {
  for (Linear* child : {&kv_proj_, &gate_proj_}) add_child(*child);
  Builder wide = builder.of_kind(ParameterKind::biases);
  wide.dtype = accumulator(builder.dtype);
  position_bias_ = &add_parameter(wide, "position_bias", {ratio, values}, {Initialization::Kind::zeros}, false);
  add_child(kv_norm_);
}

Var Compressor::finished(Tape& tape, const Var& entries, const Tensor& turns) {
  const int64_t B = entries.size(0), E = entries.size(1);
  const Var normed = ops::reshape(tape, kv_norm_.forward(tape, entries, false), {B, E, 1, channels_});
  return ops::reshape(tape, ops::rope(tape, normed, turns, rope_), {B, E, channels_});
}

Var Compressor::forward(Tape& tape, const Var& x, const ops::CompressedPlaces& places) {
  const ModuleScope scope(tape, *this);
  const Var kv = kv_proj_.forward(tape, x), gate = gate_proj_.forward(tape, x);
  const Var entries = ops::make_entries(tape, kv, gate, tape.parameter(*position_bias_), overlap_, places);
  return finished(tape, entries, places.entries.turns);
}

void Compressor::extend(Tape& tape, const Var& x, const EntryCache& cache, const kernels::SequencePlaces& places) {
  const ModuleScope scope(tape, *this);
  Stream& stream = tape.stream();
  const int64_t T = x.size(1);
  const auto rows = [&](const Var& of) { return of.value().reshape({T, of.size(2)}); };
  const Var kv = kv_proj_.forward(tape, x), gate = gate_proj_.forward(tape, x);
  const Tensor made = stream.empty({1, T, channels_}, x.dtype()), turns = stream.empty({1, T}, DType::i32);
  kernels::make_entries_in_step(stream, made.reshape({T, channels_}), cache.tails,
                                {rows(kv), rows(gate), tape.parameter(*position_bias_).value(), overlap_}, places);
  kernels::entry_positions(stream, turns.reshape({T}), places.positions, ratio_);
  const Var entries = finished(tape, tape.constant(made), turns);
  kernels::append_entries(stream, cache.entries, entries.value().reshape({T, channels_}), places, ratio_);
}

EntryIndexer::EntryIndexer(const Builder& builder, const CompressedSpec& spec, const MixerModel& model)
    : Module(builder.path),
      spec_(spec),
      q_b_proj_(of_entries(builder / "q_b_proj"), spec.q_rank, spec.index_heads * spec.index_head_dim,
                builder.init_std),
      weights_proj_(of_entries(builder / "weights_proj"), model.width, spec.index_heads, builder.init_std),
      compressor_(of_entries(builder / "compressor"), model, spec.ratio, spec.index_head_dim, spec.index_values(),
                  spec.rope) {
  for (Linear* child : {&q_b_proj_, &weights_proj_}) add_child(*child);
  add_child(compressor_);
}

Tensor EntryIndexer::chosen(Tape& tape, const Var& x, const Var& latent, const Tensor& positions, const Tensor& entries,
                            const kernels::SequencePlaces& places) {
  const int64_t B = x.size(0), S = x.size(1), H = spec_.index_heads, d = spec_.index_head_dim;
  const Var heads = ops::reshape(tape, q_b_proj_.forward(tape, latent), {B, S, H, d});
  const Var q = ops::rope(tape, heads, positions, spec_.rope), w = weights_proj_.forward(tape, x);
  return ops::choose_entries(tape.stream(), q.value().reshape({B * S, H, d}), w.value().reshape({B * S, H}), entries,
                             places, spec_.ratio, 1 / std::sqrt(static_cast<double>(d * H)), spec_.index_topk);
}

// The choice passes no gradient on.
Tensor EntryIndexer::choose(Stream& stream, const Var& x, const Var& latent, const Positions& where,
                            const ops::CompressedPlaces& places) {
  Tape tape(stream, Tape::Mode::off);
  const ModuleScope scope(tape, *this);
  const Var in = tape.constant(x.value());
  const Var entries = compressor_.forward(tape, in, places);
  return chosen(tape, in, tape.constant(latent.value()), where.positions, entries.value(), places.tokens);
}

Tensor EntryIndexer::choose_in_step(Stream& stream, const Var& x, const Var& latent, const Tensor& positions,
                                    const EntryCache& cache, const kernels::SequencePlaces& places) {
  Tape tape(stream, Tape::Mode::off);
  const ModuleScope scope(tape, *this);
  compressor_.extend(tape, x, cache, places);
  return chosen(tape, x, latent, positions, cache.entries, places);
}

CompressedAttention::CompressedAttention(const Builder& builder, const CompressedSpec& spec, const MixerModel& model)
    : TokenMixer(builder.path),
      spec_(spec),
      q_a_proj_(builder / "q_a_proj", model.width, spec.q_rank, builder.init_std),
      q_b_proj_(builder / "q_b_proj", spec.q_rank, spec.num_attention_heads * spec.head_dim, builder.init_std),
      kv_proj_(builder / "kv_proj", model.width, spec.head_dim, builder.init_std),
      q_a_norm_(builder / "q_a_norm", rmsnorm_of(model), spec.q_rank),
      kv_norm_(builder / "kv_norm", rmsnorm_of(model), spec.head_dim),
      head_norm_(rmsnorm_of(model)),
      o_b_proj_(builder / "o_b_proj", spec.o_groups * spec.o_rank, model.width, builder.output_init_std) {
  for (Module* child : std::initializer_list<Module*>{&q_a_proj_, &q_a_norm_, &q_b_proj_, &kv_proj_, &kv_norm_})
    add_child(*child);
  o_a_proj_ = &add_parameter(builder, "o_a_proj.weight",
                             {spec.o_groups * spec.o_rank, spec.num_attention_heads * spec.head_dim / spec.o_groups},
                             {.std = builder.init_std});
  add_child(o_b_proj_);
  sinks_ = &add_parameter(builder.of_kind(ParameterKind::biases), "sinks", {spec.num_attention_heads},
                          {Initialization::Kind::zeros}, false);
  if (spec.ratio > 0)
    add_child(
        compressor_.emplace(builder / "compressor", model, spec.ratio, spec.head_dim, spec.entry_values(), spec.rope));
  if (spec.sparse) add_child(indexer_.emplace(builder / "indexer", spec, model));
}

ops::CompressedArgs CompressedAttention::args() const {
  return {spec_.window, std::max<int64_t>(spec_.ratio, 1), 1 / std::sqrt(static_cast<double>(spec_.head_dim))};
}

CompressedAttention::Heads CompressedAttention::project(Tape& tape, const Var& x, const Tensor& positions,
                                                        const Randomness& randomness) {
  const int64_t B = x.size(0), S = x.size(1), N = spec_.num_attention_heads, d = spec_.head_dim;
  const Var latent = q_a_norm_.forward(tape, q_a_proj_.forward(tape, x, randomness), false);
  const Var q = ops::reshape(tape, q_b_proj_.forward(tape, latent, randomness), {B, S, N, d});
  const Var keys = kv_norm_.forward(tape, kv_proj_.forward(tape, x, randomness), false);
  const auto turned = [&](const Var& of) { return ops::rope(tape, of, positions, spec_.rope); };
  return {latent, turned(ops::rmsnorm(tape, q, {}, head_norm_.norm_epsilon)),
          ops::reshape(tape, turned(ops::reshape(tape, keys, {B, S, 1, d})), {B, S, d})};
}

Var CompressedAttention::output(Tape& tape, const Var& y, const Tensor& positions, const Randomness& randomness) {
  kernels::RopeArgs back = spec_.rope;
  back.inverse = true;
  const Var turned = ops::rope(tape, y, positions, back);
  const Var rows = ops::reshape(tape, turned, {y.size(0), y.size(1), spec_.num_attention_heads * spec_.head_dim});
  return o_b_proj_.forward(tape, ops::block_linear(tape, rows, tape.parameter(*o_a_proj_), spec_.o_groups), randomness);
}

Var CompressedAttention::forward(Tape& tape, const Var& x, const Positions& where, const Randomness& randomness,
                                 const Var& /*embedded*/) {
  const ModuleScope scope(tape, *this);
  Stream& stream = tape.stream();
  const Tensor ids = where.hints.one_sequence_per_row ? Tensor() : where.sequence_ids;
  const ops::CompressedPlaces places = ops::compressed_places(stream, where.positions, ids, spec_.ratio);
  const Heads heads = project(tape, x, where.positions, randomness);
  const Var entries = compressor_ ? compressor_->forward(tape, x, places) : Var();
  const Tensor chosen = indexer_ ? indexer_->choose(stream, x, heads.latent, where, places) : Tensor();
  const Var y =
      ops::compressed_attention(tape, heads.q, heads.keys, tape.parameter(*sinks_), entries, chosen, places, args());
  return output(tape, y, where.positions, randomness);
}

// The step's keys and entries are in the caches before its tokens attend.
Var CompressedAttention::decode(Tape& tape, const Var& x, const Positions& where, SequenceState& state,
                                const Var& /*embedded*/) {
  const ModuleScope scope(tape, *this);
  Stream& stream = tape.stream();
  const auto& cache = dynamic_cast<const CompressedState&>(state);
  const kernels::CacheTokens& tokens = where.cached;
  for (const kernels::CacheRun& run : tokens.runs)
    require<ShapeError>(run.past + run.count <= cache.limit, "compressed attention: ", run.past + run.count,
                        " positions in a cache of ", cache.limit);
  const int64_t T = x.size(1), N = spec_.num_attention_heads, d = spec_.head_dim;
  const Tensor positions = tokens.positions.reshape({1, T});
  const kernels::SequencePlaces places = places_in_step(stream, tokens);
  const Heads heads = project(tape, x, positions, {});
  kernels::append_to_cache(stream, cache.keys, heads.keys.value().reshape({1, T, 1, d}), tokens);
  if (compressor_) compressor_->extend(tape, x, *cache.entries, places);
  kernels::CompressedInputs in{heads.q.value().reshape({T, N, d}),
                               cache.keys.reshape({cache.keys.size(0), cache.limit, d}),
                               tape.parameter(*sinks_).value()};
  if (compressor_) in.entries = cache.entries->entries;
  if (indexer_) in.chosen = indexer_->choose_in_step(stream, x, heads.latent, positions, *cache.indexed, places);
  in.places = places;
  in.window = args().window, in.m = args().m, in.scale = args().scale;
  const Tensor y = stream.empty({1, T, N, d}, x.dtype());
  kernels::compressed_attention_forward(stream, y.reshape({T, N, d}), {}, in);
  return output(tape, tape.constant(y), positions, {});
}

std::unique_ptr<SequenceState> CompressedAttention::make_state(Stream& stream, const StateSize& size,
                                                               DType dtype) const {
  return std::make_unique<CompressedState>(stream, size, spec_, dtype);
}

}  // namespace witan
