#include "witan/data/batches/batch_ramp.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <string>

#include "witan/base/error.h"

namespace witan {
namespace {

constexpr std::string_view kForm =
    " must be three whole numbers, START,INCREMENT,SAMPLES: the first global batch size, what is added to it at a "
    "time, "
    "and the samples over which it grows";

// The three numbers; empty where the text is not of that form.
std::vector<int64_t> numbers_of(std::string_view text) {
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  std::vector<int64_t> numbers;
  for (const char* at = text.data(); at < text.data() + text.size();) {
    const char* const end = text.data() + text.size();
    while (at < end && *at == ' ') ++at;
    int64_t number = 0;
    const auto [after, error] = std::from_chars(at, end, number);
    if (error != std::errc()) return {};
    numbers.push_back(number);
    at = after;
    while (at < end && *at == ' ') ++at;
    if (at == end) return numbers;
    if (*at++ != ',') return {};
  }
  return {};
}

}  // namespace

BatchRamp BatchRamp::parse(std::string_view text, int64_t full) {
  BatchRamp ramp(full);
  if (text.empty()) return ramp;
  const std::string key = cat("rampup_batch_size = ", text);
  const std::vector<int64_t> numbers = numbers_of(text);
  require<ConfigError>(numbers.size() == 3, key, kForm);
  const int64_t start = numbers[0], increment = numbers[1], samples = numbers[2];
  require<ConfigError>(start > 0 && increment > 0 && samples > 0, key, ": each of its numbers must be above 0");
  require<ConfigError>(start < full, key, ": it grows to global_batch_size = ", full,
                       ", which must be more than its start; leave rampup_batch_size out for a constant size");
  require<ConfigError>((full - start) % increment == 0, key, ": global_batch_size - START = ", full - start,
                       " is not a multiple of the increment ", increment,
                       ", so that the size would never be global_batch_size = ", full);
  ramp.increment_ = increment;
  ramp.increments_ = (full - start) / increment;
  ramp.samples_ = samples;
  return ramp;
}

BatchRamp BatchRamp::in_units_of(int64_t unit) const {
  BatchRamp rounded = *this;
  rounded.unit_ = unit;
  return rounded;
}

// Divides in float64, as Python does.
int64_t BatchRamp::nominal(int64_t consumed) const {
  if (consumed > samples_ || !ramps()) return full_;
  const double of_increment = static_cast<double>(samples_) / static_cast<double>(increments_);
  const auto added = static_cast<int64_t>(static_cast<double>(consumed) / of_increment);
  return start() + std::min(added, increments_) * increment_;
}

int64_t BatchRamp::end_of_size(int64_t consumed) const {
  const int64_t now = nominal(consumed);
  if (now == full_) return std::numeric_limits<int64_t>::max();
  const int64_t done = (now - start()) / increment_ + 1;
  const double of_increment = static_cast<double>(samples_) / static_cast<double>(increments_);
  auto end = std::max(static_cast<int64_t>(static_cast<double>(done) * of_increment) - 1, consumed + 1);
  while (nominal(end) == now) ++end;  // a few at most: the product may be rounded otherwise than the quotient
  return end;
}

std::vector<int64_t> BatchRamp::sizes() const {
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i <= increments_; ++i) {
    const int64_t size = (start() + i * increment_) / unit_ * unit_;
    if (sizes.empty() || sizes.back() < size) sizes.push_back(size);
  }
  return sizes;
}

// Visits steps of one size together.
template <class Visit>
void BatchRamp::walk(Visit visit) const {
  for (int64_t consumed = 0;;) {
    const int64_t now = size(consumed), end = end_of_size(consumed);
    const bool last = end == std::numeric_limits<int64_t>::max();
    const int64_t steps = last ? end : (end - consumed + now - 1) / now;
    if (!visit(now, steps) || last) return;
    consumed += steps * now;
  }
}

int64_t BatchRamp::consumed_by(int64_t steps) const {
  int64_t consumed = 0;
  walk([&](int64_t size, int64_t at_this_size) {
    const int64_t taken = std::min(steps, at_this_size);
    consumed += taken * size;
    steps -= taken;
    return steps > 0;
  });
  return consumed;
}

int64_t BatchRamp::steps_below_full() const {
  int64_t steps = 0;
  walk([&](int64_t, int64_t at_this_size) {
    if (at_this_size < std::numeric_limits<int64_t>::max()) steps += at_this_size;
    return true;
  });
  return steps;
}

int64_t BatchRamp::steps_over(int64_t samples) const {
  int64_t steps = 0, consumed = 0;
  while (ramps() && consumed <= samples_ && consumed <= samples) {
    const int64_t now = nominal(consumed);
    const int64_t end = std::min({end_of_size(consumed), samples_ + 1, samples + 1});
    const int64_t at_this_size = (end - consumed + now - 1) / now;
    consumed += at_this_size * now;
    steps += at_this_size;
  }
  if (samples > consumed) steps += (samples - consumed) / full_;
  return steps;
}

}  // namespace witan
