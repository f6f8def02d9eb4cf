#include "witan/parallel/divided_values.h"

#include <algorithm>
#include <cassert>
#include <map>
#include <string_view>
#include <utility>

namespace witan {
namespace {

constexpr std::string_view kBlocks = "layers.";

// Where the plan's parameters of this dtype lie in the whole, and where owners' parts begin: at the same elements as in
// the gradients, which are all of one dtype and lie close.
std::pair<std::vector<int64_t>, std::vector<int64_t>> places_of(const BucketPlan& plan,
                                                                const std::vector<Parameter*>& parameters,
                                                                DType dtype) {
  const int64_t grid = Arena::kAlignment / size_of(dtype);
  std::vector<int64_t> places, begins;
  int64_t end = 0, close = 0;
  for (const size_t i : plan.parameters) {
    const Parameter& parameter = *parameters[i];
    const bool here = parameter.spec().dtype == dtype;
    const int64_t at = here && parameter.spec().beside ? end : (end + grid - 1) / grid * grid;
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

DividedValues::DividedValues(Stream& stream, Module& model, const Groups& groups, const Options& options)
    : stream_(stream), reshard_after_forward_(options.reshard_after_forward), parameters_(model.parameters()) {
  const std::vector<std::vector<size_t>> units = plan_units(parameters_);
  const std::vector<BucketPlan> plans =
      plan_gradients(parameters_, groups.layout(), BucketPlan::kElements, options.policy);
  for (const std::vector<size_t>& members : units) {
    const Parameter& first = *parameters_[members.front()];
    Unit& unit = units_.emplace_back(Unit{first.name().starts_with(kBlocks), first.spec().chunk});
    for (const BucketPlan& plan : plans)
      if (std::ranges::binary_search(members, plan.parameters.front())) add_buffers(unit, plan, groups);
  }
  begin_values(options);
  listen(model);
}

DividedValues::~DividedValues() {
  for (Parameter* parameter : parameters_) parameter->value_wanted = nullptr;
}

// One for each dtype of the plan's parameters: a router's are wider than what is around it.
void DividedValues::add_buffers(Unit& unit, const BucketPlan& plan, const Groups& groups) const {
  const Layout& layout = groups.layout();
  Group* group = layout.divides_values(plan.experts) ? &groups.over(layout.owner_axes(plan.experts)) : nullptr;
  const auto dtype_of = [&](size_t i) { return parameters_[i]->spec().dtype; };
  std::vector<size_t> left = plan.parameters;
  while (!left.empty()) {
    const DType dtype = dtype_of(left.front());
    const auto others = std::ranges::stable_partition(left, [&](size_t i) { return dtype_of(i) == dtype; });
    std::vector<size_t> members(left.begin(), others.begin());
    const auto [places, begins] = places_of(plan, parameters_, dtype);
    const int64_t count = part_of(begins, group ? group->rank() : 0).second;
    const Tensor kept = stream_.empty({count}, dtype, MemoryTag::weights);
    unit.buffers.push_back({std::move(members), places, begins, group, kept, {}});
    left.erase(left.begin(), others.begin());
  }
}

// In the order of construction, in which a generator of PyTorch's draws.
void DividedValues::begin_values(const Options& options) {
  const auto torch = options.torch ? std::make_unique<TorchRandom>(options.seed) : nullptr;
  std::map<std::string_view, std::pair<Buffer*, size_t>> where;
  for (size_t u = 0; u < units_.size(); ++u)
    for (Buffer& buffer : units_[u].buffers)
      for (size_t i = 0; i < buffer.parameters.size(); ++i) {
        Parameter& parameter = *parameters_[buffer.parameters[i]];
        where[parameter.name()] = {&buffer, i};
        if (buffer.group) parameter.value_wanted = [this, u] { need(u); };
      }
  const auto begin = [&](const Parameter& parameter) {
    if (const auto held = where.find(parameter.name()); held != where.end())
      keep(*held->second.first, held->second.second, options.seed, torch.get());
    else if (torch)
      parameter.draw_past(*torch);
  };
  if (options.drawn.empty())
    std::ranges::for_each(parameters_, [&](const Parameter* parameter) { begin(*parameter); });
  else
    std::ranges::for_each(options.drawn, [&](const Parameter* parameter) { begin(*parameter); });
}

// This rank's elements of the buffer's index-th parameter; all of them where no one divides it.
void DividedValues::keep(Buffer& buffer, size_t index, uint64_t seed, TorchRandom* torch) {
  Parameter& parameter = *parameters_[buffer.parameters[index]];
  const auto [begin, count] = part_of(buffer.begins, buffer.group ? buffer.group->rank() : 0);
  const int64_t place = buffer.places[index], end = place + parameter.elements();
  const int64_t first = std::clamp(begin, place, end), last = std::clamp(begin + count, place, end);
  const Tensor kept = buffer.kept.narrow(0, first < last ? first - begin : 0, last - first);
  parameter.keep_value(stream_, kept, first - place, seed, torch);
  if (!buffer.group) parameter.bind_value(kept.reshape(std::as_const(parameter).shape()));
}

void DividedValues::listen(Module& model) {
  const auto listen_to = [&](Module& module, ModuleHooks hooks) { observers_.emplace_back(module, std::move(hooks)); };
  const auto end_backward = [this] {
    if (reshard_after_forward_) release();
    in_backward_ = false;
  };
  listen_to(model, {[this] { in_backward_ = false; }, {}, [this] { in_backward_ = true; }, end_backward});
  model.visit([&](Module& module) {
    for (size_t u = 0; u < units_.size(); ++u) {
      const Parameter& first = *parameters_[units_[u].buffers.front().parameters.front()];
      const bool here = units_[u].block && first.name().starts_with(module.path() + ".") &&
                        module.path().rfind('.') + 1 == kBlocks.size();
      if (!here) continue;
      const auto enter_it = [this, u] { enter(u); };
      const auto end_backward_of_it = [this, u] {
        if (reshard_after_forward_) release(units_[u]);
      };
      listen_to(module, {enter_it, [this, u] { leave(u); }, enter_it, end_backward_of_it});
    }
  });
}

// A block's forward begins, or its backward: the forward once more, where it is computed again, or the gradients.
void DividedValues::enter(size_t unit) {
  for (size_t other = 0; other < units_.size(); ++other)
    if (reshard_after_forward_ && other != unit && !units_[other].under_way) release(units_[other]);
  need(unit);
  if (!in_backward_)
    prefetch(unit + 1, units_[unit].chunk);
  else if (unit > 0 && units_[unit - 1].block)
    prefetch(unit - 1, units_[unit].chunk);
}

// A block's forward is over. A backward begins with the last one of its chunk.
void DividedValues::leave(size_t unit) {
  const size_t next = unit + 1;
  const bool last = next == units_.size() || !units_[next].block || units_[next].chunk != units_[unit].chunk;
  if (reshard_after_forward_ && !in_backward_ && !last) release(units_[unit]);
}

void DividedValues::need(size_t unit) {
  Unit& needed = units_[unit];
  if (needed.bound) return;
  if (!needed.gathered) fetch(needed);
  if (std::exchange(needed.under_way, false)) stream_.follow(*beside_);
  bind(needed, true);
}

void DividedValues::prefetch(size_t unit, int chunk) {
  const bool next = unit < units_.size() && units_[unit].chunk == chunk;
  if (prefetches_ && next && !units_[unit].gathered) fetch(units_[unit]);
}

void DividedValues::fetch(Unit& unit) {
  if (beside_) beside_->follow(stream_);  // which may still use the memory
  gather(unit, beside_ ? *beside_ : stream_);
  unit.under_way = beside_ != nullptr;
}

void DividedValues::gather(Unit& unit, Stream& on) const {
  for (Buffer& buffer : unit.buffers) {
    if (!buffer.group) continue;
    buffer.whole = stream_.empty({buffer.begins.back()}, buffer.kept.dtype(), MemoryTag::communication);
    std::vector<OwnedPiece> pieces;
    for (int owner = 0; owner < buffer.group->size(); ++owner)
      if (const auto [begin, count] = part_of(buffer.begins, owner); count > 0)
        pieces.push_back({buffer.whole.narrow(0, begin, count), owner});
    const auto [begin, count] = part_of(buffer.begins, buffer.group->rank());
    if (count > 0) on.copy(buffer.whole.narrow(0, begin, count), buffer.kept);
    buffer.group->gather_pieces(on, pieces);
  }
  unit.gathered = true;
}

// Parameters have their values in the whole, or none.
void DividedValues::bind(Unit& unit, bool whole) {
  for (const Buffer& buffer : unit.buffers) {
    if (!buffer.group) continue;
    for (size_t i = 0; i < buffer.parameters.size(); ++i) {
      Parameter& parameter = *parameters_[buffer.parameters[i]];
      const Shape& shape = std::as_const(parameter).shape();
      parameter.bind_value(whole ? buffer.whole.narrow(0, buffer.places[i], shape.elements()).reshape(shape)
                                 : Tensor());
    }
  }
  unit.bound = whole;
}

void DividedValues::release(Unit& unit) {
  if (!unit.gathered) return;
  if (std::exchange(unit.under_way, false)) stream_.follow(*beside_);
  bind(unit, false);
  for (Buffer& buffer : unit.buffers) buffer.whole = {};
  unit.gathered = false;
}

void DividedValues::begin_passes() {
  if (reshard_after_forward_) return release();
  for (size_t unit = 0; unit < units_.size(); ++unit) need(unit);
}

void DividedValues::end_pass() {
  if (reshard_after_forward_) release();
}

void DividedValues::release() {
  for (Unit& unit : units_) release(unit);
}

}  // namespace witan
