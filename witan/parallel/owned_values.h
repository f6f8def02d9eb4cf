// Values that owners update for each other (ZeRO stage 1: Rajbhandari et al., 2020), gathered while they are first
// used.
//
// After an update every rank has the new values of what it owns, and old ones of the rest. Units of the model, a block
// or what lies before the blocks or behind them (plan_units), are gathered in their order, each before a kernel first
// asks for a value of it (Parameter::value()): in the next step's forward, or whenever somebody reads values before. On
// a GPU that is on a stream of its own, the next unit beside the computation of this one.
//
// Whoever reads values otherwise, by tensors that it holds, calls gather() first. All owners make the same calls, and
// use units alike.
#pragma once

#include <vector>

#include "witan/parallel/sharding/ownership.h"

namespace witan {

class OwnedValues {
 public:
  // Listens to the parameters whose update is divided among owners, but not their values, until it is destroyed.
  // Stream, ownership's parameters and groups must outlive it.
  OwnedValues(Stream& stream, const Ownership& ownership, const Groups& groups);
  ~OwnedValues();
  OwnedValues(const OwnedValues&) = delete;
  OwnedValues& operator=(const OwnedValues&) = delete;

  // From now on units are gathered on this stream. It must outlive the last use. Null: on the main stream.
  void gather_on(Stream* beside) { beside_ = beside; }

  // Owners have updated what is theirs.
  void updated();
  // What is not there yet, of all units.
  void gather();
  bool gathered() const { return arrived_ == units_.size(); }

 private:
  // What one group gathers of a unit.
  struct Buffer {
    Group* group;
    std::vector<OwnedPiece> pieces;
  };
  struct Unit {
    std::vector<Parameter*> parameters;
    std::vector<Buffer> buffers;  // of experts, and of all else
  };

  Unit unit_of(const std::vector<size_t>& members, const Ownership& ownership, const Groups& groups) const;
  void need(size_t unit);
  void fetch();

  Stream& stream_;
  Stream* beside_ = nullptr;
  std::vector<Unit> units_;           // in the model's order; those of which anything is gathered
  size_t fetched_ = 0, arrived_ = 0;  // units that are under way, or there; and those that are there
};

}  // namespace witan
