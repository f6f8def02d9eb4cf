#include "witan/report/events/step_scalars.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>

#include "witan/base/text.h"

namespace witan {
namespace {

// Undeclared ones follow all declared ones.
std::ptrdiff_t place_of(const std::string& key) {
  const auto* const found =
      std::ranges::find_if(kStepScalars, [&](const StepScalar* declared) { return key == declared->key; });
  return found - std::begin(kStepScalars);
}

const StepScalar* declaration_of(const std::string& key) {
  const auto place = static_cast<size_t>(place_of(key));
  return place < std::size(kStepScalars) ? kStepScalars[place] : nullptr;
}

// It refers to the key.
StepScalar undeclared(const std::string& key) {
  return {.key = key.c_str(),
          .tensorboard = StepScalar::Tag{key.c_str()},
          .progress = StepScalar::Text{key.c_str(), " {:.4g}"}};
}

bool comes_before(const std::string& a, const std::string& b) {
  const std::ptrdiff_t place_a = place_of(a), place_b = place_of(b);
  return place_a != place_b ? place_a < place_b : a < b;
}

}  // namespace

void StepScalars::set(const std::string& key, const StepScalar* declared, double value) {
  const auto at = std::ranges::find_if(entries_, [&](const Entry& entry) { return !comes_before(entry.key, key); });
  if (at != entries_.end() && at->key == key)
    *at = {key, value, declared};
  else
    entries_.insert(at, {key, value, declared});
}

void StepScalars::set(const std::string& key, double value) {
  set(key, declaration_of(key), value);
}

void StepScalars::update(const StepScalars& others) {
  for (const Entry& entry : others.entries_) set(entry.key, entry.declared, entry.value);
}

std::optional<double> StepScalars::get(std::string_view key) const {
  const auto found = std::ranges::find(entries_, key, &Entry::key);
  return found == entries_.end() ? std::nullopt : std::optional(found->value);
}

template <class Where>
std::vector<StepScalars::Shown<Where>> StepScalars::shown(std::optional<Where> StepScalar::*where) const {
  std::vector<Shown<Where>> some;
  for (const Entry& entry : entries_) {
    const StepScalar scalar = entry.declared ? *entry.declared : undeclared(entry.key);
    if (scalar.*where) some.push_back({entry.key, *(scalar.*where), entry.value});
  }
  std::ranges::stable_sort(some, {}, [](const Shown<Where>& one) { return one.where.place; });
  return some;
}
template std::vector<StepScalars::Shown<StepScalar::Tag>> StepScalars::shown(
    std::optional<StepScalar::Tag> StepScalar::*) const;
template std::vector<StepScalars::Shown<StepScalar::Text>> StepScalars::shown(
    std::optional<StepScalar::Text> StepScalar::*) const;

bool StepScalars::operator==(const StepScalars& other) const {
  return std::ranges::equal(entries_, other.entries_,
                            [](const Entry& a, const Entry& b) { return a.key == b.key && a.value == b.value; });
}

std::string format_value(const StepScalar::Text& text, double value) {
  return text.format ? fmt::format(fmt::runtime(text.format), value) : format_count(value);
}

}  // namespace witan
