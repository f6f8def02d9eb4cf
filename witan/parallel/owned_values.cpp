#include "witan/parallel/owned_values.h"

#include <utility>

namespace witan {

OwnedValues::OwnedValues(Stream& stream, const Ownership& ownership, const Groups& groups) : stream_(stream) {
  for (const std::vector<size_t>& members : plan_units(ownership.parameters()))
    if (Unit unit = unit_of(members, ownership, groups); !unit.buffers.empty()) units_.push_back(std::move(unit));
  for (size_t u = 0; u < units_.size(); ++u)
    for (Parameter* parameter : units_[u].parameters) parameter->value_wanted = [this, u] { need(u); };
  fetched_ = arrived_ = units_.size();
}

OwnedValues::~OwnedValues() {
  for (const Unit& unit : units_)
    for (Parameter* parameter : unit.parameters) {
      parameter->await_value(false);
      parameter->value_wanted = nullptr;
    }
}

OwnedValues::Unit OwnedValues::unit_of(const std::vector<size_t>& members, const Ownership& ownership,
                                       const Groups& groups) const {
  Unit unit;
  for (const bool experts : {false, true}) {
    const int owners = ownership.owners(experts);
    if (owners == 1 || groups.layout().divides_values(experts)) continue;
    Buffer buffer{&groups.over(groups.layout().owner_axes(experts)), {}};
    for (const size_t i : members) {
      Parameter& parameter = *ownership.parameters()[i];
      if (parameter.spec().expert != experts) continue;
      unit.parameters.push_back(&parameter);
      const Tensor flat = parameter.value().reshape({parameter.elements()});
      for (int owner = 0; owner < owners; ++owner)
        if (const Ownership::Range part = ownership.range(i, owner); part.elements > 0)
          buffer.pieces.push_back({flat.narrow(0, part.first, part.elements), owner});
    }
    if (!buffer.pieces.empty()) unit.buffers.push_back(std::move(buffer));
  }
  return unit;
}

void OwnedValues::updated() {
  fetched_ = arrived_ = 0;
  for (const Unit& unit : units_)
    for (Parameter* parameter : unit.parameters) parameter->await_value(true);
}

void OwnedValues::gather() {
  if (!gathered()) need(units_.size() - 1);
}

// And all before it, so that every owner makes the same calls.
void OwnedValues::need(size_t unit) {
  if (unit < arrived_) return;
  while (fetched_ <= unit) fetch();
  if (beside_) stream_.follow(*beside_);
  for (; arrived_ < fetched_; ++arrived_)
    for (Parameter* parameter : units_[arrived_].parameters) parameter->await_value(false);
  if (beside_ && fetched_ < units_.size()) fetch();
}

void OwnedValues::fetch() {
  if (beside_ && fetched_ == 0) beside_->follow(stream_);  // which updated them, and read the old ones
  for (const Buffer& buffer : units_[fetched_++].buffers)
    buffer.group->gather_pieces(beside_ ? *beside_ : stream_, buffer.pieces);
}

}  // namespace witan
