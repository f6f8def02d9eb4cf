#include "witan/model/unit.h"

namespace witan {

std::vector<Parameter*> parameters_of(const std::vector<Unit>& units) {
  std::vector<Parameter*> all;
  for (const Unit& unit : units) all.insert(all.end(), unit.parameters.begin(), unit.parameters.end());
  return all;
}

// The backward ends where the forward began, and begins where the forward ended.
PassGuard::PassGuard(Tape& tape, UnitAccess* units) : tape_(tape), units_(units) {
  if (units_ == nullptr) return;
  units_->begin_forward();
  tape_.mark([units] { units->end_backward(); });
}

PassGuard::~PassGuard() {
  if (units_ != nullptr) tape_.mark([units = units_] { units->begin_backward(); });
}

UnitGuard::UnitGuard(Tape& tape, UnitAccess* units, int unit, Backward backward)
    : tape_(tape), units_(units), unit_(unit), backward_(backward) {
  if (units_ != nullptr) units_->acquire(unit_, UnitAccess::Use::forward);
  if (on_tape()) mark_ = tape_.mark([units, unit] { units->release(unit, UnitAccess::Use::backward); });
}

UnitGuard::~UnitGuard() {
  if (on_tape())
    tape_.close_mark(mark_, [units = units_, unit = unit_] { units->acquire(unit, UnitAccess::Use::backward); });
  if (units_ != nullptr) units_->release(unit_, UnitAccess::Use::forward);
}

UnitReading::UnitReading(UnitAccess* units, int unit) : units_(units), unit_(unit) {
  if (units_ != nullptr) units_->acquire(unit_, UnitAccess::Use::read);
}

UnitReading::~UnitReading() {
  if (units_ != nullptr) units_->release(unit_, UnitAccess::Use::read);
}

}  // namespace witan
