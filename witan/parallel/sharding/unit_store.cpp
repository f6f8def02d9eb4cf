#include "witan/parallel/sharding/unit_store.h"

#include <algorithm>
#include <cassert>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "witan/tensor/trace_context.h"

namespace witan {
namespace {

// The parameter with which this one may be fused: adapters of its matrix may lie in between.
size_t previous_matrix(const std::vector<Parameter*>& parameters, size_t i) {
  size_t previous = i;
  while (previous > 0 && parameters[--previous]->spec().frozen != parameters[i]->spec().frozen) {
  }
  return previous;
}

// The parameters of a whole have the same dtype and format.
struct StoredAs {
  DType dtype;
  kernels::WeightFormat format;

  explicit StoredAs(const Parameter& parameter) : dtype(parameter.spec().dtype), format(parameter.spec().format) {}
  bool operator==(const StoredAs&) const = default;
};

// The coded parameters among the unit's, as the plan of a layout that shards nothing.
BucketPlan plan_of_codes(const std::vector<Parameter*>& parameters, size_t first, size_t end, bool experts) {
  BucketPlan plan;
  plan.experts = experts;
  plan.frozen = true;
  plan.begins = {0, 0};
  for (size_t i = first; i < end; ++i) {
    if (!parameters[i]->in_codes() || parameters[i]->spec().expert != experts) continue;
    plan.parameters.push_back(i);
    plan.begins.back() += parameters[i]->elements();
  }
  return plan;
}

// The offsets of the plan's parameters that are stored so in the whole, and of the ranks' shards, which begin at the
// same elements as in the gradients. Gradients all have one dtype and lie close together.
std::pair<std::vector<int64_t>, std::vector<int64_t>> places_of(const BucketPlan& plan,
                                                                const std::vector<Parameter*>& parameters,
                                                                const StoredAs& as) {
  const int64_t grid = Arena::kAlignment / size_of(as.dtype);
  std::vector<int64_t> places, begins;
  int64_t end = 0, close = 0;
  std::optional<size_t> neighbour;  // the parameter directly after which a fused one would lie
  for (const size_t i : plan.parameters) {
    const Parameter& parameter = *parameters[i];
    const bool here = StoredAs(parameter) == as;
    const bool fused = parameter.spec().fused_with_previous && neighbour == previous_matrix(parameters, i);
    const int64_t at = here && fused ? end : (end + grid - 1) / grid * grid;
    neighbour = i;
    while (plan.begins[begins.size()] < close + parameter.elements())
      begins.push_back(here ? at + plan.begins[begins.size()] - close : at);
    if (here) {
      places.push_back(at);
      end = at + parameter.elements();
    }
    close += parameter.elements();
  }
  begins.resize(plan.begins.size(), end);
  for (int64_t& begin : begins) begin = std::min(begin, end);
  return {places, begins};
}

}  // namespace

UnitStore::UnitStore(Stream& stream, const std::vector<Unit>& units, const ShardPlan& shard_plan, const Groups& groups,
                     const Options& options)
    : stream_(stream),
      groups_(groups),
      reshard_after_forward_(options.reshard_after_forward),
      decodes_(std::ranges::any_of(shard_plan.parameters(), &Parameter::in_codes)),
      parameters_(shard_plan.parameters()) {
  assert(parameters_of(units) == parameters_);
  if (decodes_ && !sharded()) reshard_after_forward_ = true;
  const std::vector<BucketPlan> plans =
      sharded() ? plan_gradients(parameters_, groups.layout(), BucketPlan::kElements, options.policy)
                : std::vector<BucketPlan>();
  entries_.reserve(units.size());  // reserved because parameters point to the entries' states
  size_t first = 0;                // the unit's first parameter
  for (const Unit& unit : units) {
    Entry& entry = entries_.emplace_back(Entry{{unit.name}, unit.is_block(), unit.number, unit.chunk});
    const size_t end = first + unit.parameters.size();
    for (const BucketPlan& plan : plans)
      if (plan.parameters.front() >= first && plan.parameters.front() < end) add_wholes(entry, plan);
    if (!sharded())
      for (const bool experts : {false, true}) add_wholes(entry, plan_of_codes(parameters_, first, end, experts));
    add_pieces(entry, first, unit.parameters.size(), shard_plan);
    if (!entry.pieces.empty()) published_.push_back(&entry);
    first = end;
  }
  fetched_ = arrived_ = published_.size();
  if (makes_wholes()) begin_values(options);
  for (size_t i = 0; i < units.size(); ++i)
    for (Parameter* parameter : units[i].parameters) parameter->want_guard(&entries_[i].state);
}

UnitStore::~UnitStore() {
  for (Parameter* parameter : parameters_) parameter->want_guard(nullptr);
}

UnitStore::Entry& UnitStore::entry_of(int unit) {
  const auto entry = std::ranges::find(entries_, unit, &Entry::number);
  assert(entry != entries_.end());
  return *entry;
}

// Adds one whole for each dtype and format of the plan's parameters: a router's dtype is wider than that of its
// surroundings.
void UnitStore::add_wholes(Entry& entry, const BucketPlan& plan) const {
  const Layout& layout = groups_.layout();
  Group* group = layout.shards_values(plan.experts) ? &groups_.over(layout.sharding_axes(plan.experts)) : nullptr;
  std::vector<size_t> left = plan.parameters;
  while (!left.empty()) {
    const StoredAs as(*parameters_[left.front()]);
    const auto others = std::ranges::stable_partition(left, [&](size_t i) { return StoredAs(*parameters_[i]) == as; });
    std::vector<size_t> members(left.begin(), others.begin());
    const auto [places, begins] = places_of(plan, parameters_, as);
    const int64_t count = part_of(begins, group ? group->rank() : 0).second;
    const TraceContextScope named(stream_, parameters_[members.front()]->name());
    Whole& whole =
        entry.wholes.emplace_back(Whole{std::move(members), places, begins, group, as.dtype, {}, {}, {}, {}});
    if (as.format == kernels::WeightFormat::none)
      whole.shard = stream_.empty({count}, as.dtype, MemoryTag::weights);
    else
      whole.codes = kernels::empty_codes(stream_, as.format, count, MemoryTag::weights);
    left.erase(left.begin(), others.begin());
  }
}

// In the order of construction, in which PyTorch's generator draws.
void UnitStore::begin_values(const Options& options) {
  const auto torch = options.torch ? std::make_unique<TorchRandom>(options.seed) : nullptr;
  std::map<std::string_view, std::pair<Whole*, size_t>> where;
  for (Entry& entry : entries_)
    for (Whole& whole : entry.wholes)
      for (size_t i = 0; i < whole.parameters.size(); ++i)
        where[parameters_[whole.parameters[i]]->name()] = {&whole, i};
  const auto begin = [&](const Parameter& parameter) {
    if (const auto held = where.find(parameter.name()); held != where.end())
      init_shard(*held->second.first, held->second.second, options.seed, torch.get());
    else if (torch)
      parameter.draw_past(*torch);
  };
  if (options.drawn.empty())
    std::ranges::for_each(parameters_, [&](const Parameter* parameter) { begin(*parameter); });
  else
    std::ranges::for_each(options.drawn, [&](const Parameter* parameter) { begin(*parameter); });
}

// Initializes this rank's elements of the whole's index-th parameter: all of them if it is not sharded.
void UnitStore::init_shard(Whole& whole, size_t index, uint64_t seed, TorchRandom* torch) const {
  Parameter& parameter = *parameters_[whole.parameters[index]];
  const auto [begin, count] = part_of(whole.begins, whole.group ? whole.group->rank() : 0);
  const int64_t place = whole.places[index], end = place + parameter.elements();
  const int64_t first = std::clamp(begin, place, end), last = std::clamp(begin + count, place, end);
  const int64_t at = first < last ? first - begin : 0;
  if (whole.codes.defined())
    return parameter.init_codes(stream_, whole.codes.part(at, last - first), first - place, seed, torch);
  const Tensor shard = whole.shard.narrow(0, at, last - first);
  parameter.init_value_shard(stream_, shard, first - place, seed, torch);
  if (!whole.group) parameter.bind_value(shard.reshape(std::as_const(parameter).shape()));
}

void UnitStore::add_pieces(Entry& entry, size_t first_parameter, size_t parameters, const ShardPlan& shard_plan) const {
  for (const bool experts : {false, true}) {
    const int owners = shard_plan.sharding_ranks(experts);
    if (owners == 1 || groups_.layout().shards_values(experts)) continue;
    Pieces one{&groups_.over(groups_.layout().sharding_axes(experts)), {}};
    for (size_t i = first_parameter; i < first_parameter + parameters; ++i) {
      const Parameter& parameter = *parameters_[i];
      if (parameter.spec().expert != experts || parameter.spec().frozen) continue;  // it is never updated
      const Tensor flat = parameter.value_shard();  // all of it, as values are not sharded
      for (int owner = 0; owner < owners; ++owner)
        if (const ShardPlan::Range range = shard_plan.range(i, owner); range.elements > 0)
          one.pieces.push_back({flat.narrow(0, range.first, range.elements), owner});
    }
    if (!one.pieces.empty()) entry.pieces.push_back(std::move(one));
  }
}

void UnitStore::gather_on(Stream* side, bool prefetch) {
  side_ = sharded() || prefetch ? side : nullptr;
  prefetches_ = side && prefetch;
}

void UnitStore::acquire(int unit, Use use) {
  Entry& entry = entry_of(unit);
  ++entry.state.guards;
  const TraceContextScope trace_context(stream_, use == Use::backward ? std::string_view() : entry.state.name);
  const auto index = static_cast<size_t>(&entry - entries_.data());
  if (!sharded()) catch_up(entry);
  if (!makes_wholes()) return;
  if (entry.block && use != Use::read) return enter(index);
  need(index);
}

void UnitStore::release(int unit, Use use) {
  Entry& entry = entry_of(unit);
  assert(entry.state.guards > 0);
  --entry.state.guards;
  if (!makes_wholes()) return;
  if (use == Use::read) return give_back(entry);
  if (!entry.block || entry.state.guards > 0) return;  // guards of the same unit may be nested
  if (use == Use::forward)
    leave(static_cast<size_t>(&entry - entries_.data()));
  else if (reshard_after_forward_)
    give_back(entry);
}

void UnitStore::end_backward() {
  if (reshard_after_forward_) give_back();
  in_backward_ = false;
}

// A block's forward or backward begins; a backward may first repeat the forward, if it is recomputed. The previous
// block may still be in use, if lanes overlap.
void UnitStore::enter(size_t unit) {
  for (size_t other = 0; other < entries_.size(); ++other) {
    Entry& entry = entries_[other];
    const bool used = other == unit || entry.under_way || entry.state.guards > 0;
    if (reshard_after_forward_ && !used) give_back(entry);
  }
  need(unit);
  if (!in_backward_)
    prefetch(unit + 1, entries_[unit].chunk);
  else if (unit > 0 && entries_[unit - 1].block)
    prefetch(unit - 1, entries_[unit].chunk);
}

// A block's forward is over. The last block of a chunk stays, since the backward begins with it.
void UnitStore::leave(size_t unit) {
  const size_t next = unit + 1;
  const bool last = next == entries_.size() || !entries_[next].block || entries_[next].chunk != entries_[unit].chunk;
  if (reshard_after_forward_ && !in_backward_ && !last) give_back(entries_[unit]);
}

void UnitStore::need(size_t unit) {
  Entry& needed = entries_[unit];
  if (needed.bound) return;
  if (!needed.gathered) fetch(needed);
  if (std::exchange(needed.under_way, false)) stream_.follow(*side_);
  for (Whole& one : needed.wholes) one.gathered_codes = {};
  bind(needed, true);
}

void UnitStore::prefetch(size_t unit, int chunk) {
  const bool next = unit < entries_.size() && entries_[unit].chunk == chunk;
  if (prefetches_ && next && !entries_[unit].gathered) fetch(entries_[unit]);
}

void UnitStore::fetch(Entry& entry) {
  if (side_) side_->follow(stream_);  // the main stream may still use the memory
  gather(entry, side_ ? *side_ : stream_);
  entry.under_way = side_ != nullptr;
}

void UnitStore::gather(Entry& entry, Stream& on) const {
  for (Whole& one : entry.wholes)
    if (one.made_on_demand()) gather(one, on);
  entry.gathered = true;
}

void UnitStore::gather(Whole& one, Stream& on) const {
  const auto gathered = [&](const Tensor& whole, const Tensor& shard, const auto& at) {
    std::vector<OwnedTensor> pieces;
    for (int rank = 0; rank < one.group->size(); ++rank)
      if (const auto [begin, count] = part_of(one.begins, rank); count > 0)
        pieces.push_back({whole.narrow(0, at(begin), at(count)), rank});
    const auto [begin, count] = part_of(one.begins, one.group->rank());
    if (count > 0) on.copy(whole.narrow(0, at(begin), at(count)), shard);
    one.group->all_gather_uneven(on, pieces);
  };
  one.whole = stream_.empty({one.begins.back()}, one.dtype, one.group ? MemoryTag::communication : MemoryTag::weights);
  if (!one.codes.defined()) return gathered(one.whole, one.shard, [](int64_t elements) { return elements; });
  kernels::Codes codes = one.codes;
  if (one.group) {
    codes = one.gathered_codes =
        kernels::empty_codes(stream_, codes.format, one.begins.back(), MemoryTag::communication);
    const kernels::WeightFormatTraits& format = kernels::traits_of(codes.format);
    gathered(codes.words, one.codes.words, [&](int64_t elements) { return format.words(elements); });
    gathered(codes.scales, one.codes.scales, [&](int64_t elements) { return format.numbers(elements); });
  }
  kernels::decode_weights(on, codes, one.whole);
}

// Binds the parameters' values to the whole, or unbinds them.
void UnitStore::bind(Entry& entry, bool whole) const {
  for (const Whole& one : entry.wholes) {
    if (!one.made_on_demand()) continue;
    for (size_t i = 0; i < one.parameters.size(); ++i) {
      Parameter& parameter = *parameters_[one.parameters[i]];
      const Shape& shape = std::as_const(parameter).shape();
      parameter.bind_value(whole ? one.whole.narrow(0, one.places[i], shape.elements()).reshape(shape) : Tensor());
    }
  }
  entry.bound = whole;
}

void UnitStore::give_back(Entry& entry) {
  if (!entry.gathered) return;
  if (std::exchange(entry.under_way, false)) stream_.follow(*side_);
  bind(entry, false);
  for (Whole& one : entry.wholes) {
    one.whole = {};
    one.gathered_codes = {};
  }
  entry.gathered = false;
}

void UnitStore::begin_passes() {
  if (!makes_wholes()) return;
  if (reshard_after_forward_) return give_back();
  for (size_t unit = 0; unit < entries_.size(); ++unit) need(unit);
}

void UnitStore::end_pass() {
  if (reshard_after_forward_) give_back();
}

void UnitStore::give_back() {
  for (Entry& entry : entries_) give_back(entry);
}

void UnitStore::publish() {
  fetched_ = arrived_ = 0;
}

void UnitStore::gather() {
  if (!gathered()) catch_up(*published_.back());
}

// Gathers all units up to this one, so that every rank makes the same calls.
void UnitStore::catch_up(const Entry& entry) {
  const auto unit = static_cast<size_t>(std::ranges::find(published_, &entry) - published_.begin());
  if (unit == published_.size() || unit < arrived_) return;
  while (fetched_ <= unit) fetch_published();
  if (side_) stream_.follow(*side_);
  arrived_ = fetched_;
  if (side_ && fetched_ < published_.size()) fetch_published();
}

void UnitStore::fetch_published() {
  if (side_ && fetched_ == 0) side_->follow(stream_);  // the main stream updated them, and read the old values
  for (const Pieces& one : published_[fetched_++]->pieces)
    one.group->all_gather_uneven(side_ ? *side_ : stream_, one.pieces);
}

CodedUnits::CodedUnits(Stream& stream, Transformer& model, const Groups& groups, uint64_t seed) {
  const std::vector<Parameter*> parameters = model.parameters();
  if (std::ranges::none_of(parameters, &Parameter::in_codes)) return;
  plan_.emplace(parameters, groups.layout(), groups.rank());
  units_ = std::make_unique<UnitStore>(stream, model.units(), *plan_, groups, UnitStore::Options{.seed = seed});
  model.attach({.units = units_.get()});
}

}  // namespace witan
