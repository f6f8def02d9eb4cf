#include "witan/base/numbers/torch_random.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <numbers>

namespace witan {
namespace {

constexpr int64_t kChunk = 1 << 12;  // values given to a sink at a time
constexpr int64_t kGroup = 16;       // values that normal_() makes of as many uniform ones

// u -> a group of normal values, by Box and Muller: the first half of u are radii, the second angles.
void to_normal(std::span<float, kGroup> u) {
  for (size_t j = 0; j < kGroup / 2; ++j) {
    const float radius = std::sqrt(-2 * std::log(1 - u[j]));
    const float angle = 2 * std::numbers::pi_v<float> * u[j + kGroup / 2];
    u[j] = radius * std::cos(angle);
    u[j + kGroup / 2] = radius * std::sin(angle);
  }
}

}  // namespace

void TorchRandom::fill(std::span<float> out) {
  for (float& value : out) value = static_cast<float>(engine_() & 0xFFFFFF) * 0x1p-24F;
}

void TorchRandom::uniform(int64_t n, double bound, const Sink& sink) {
  const double rounded = static_cast<float>(bound);  // the bounds are float32, what lies between is formed in double
  std::array<float, kChunk> chunk;
  for (int64_t first = 0; first < n; first += kChunk) {
    const std::span values(chunk.data(), static_cast<size_t>(std::min(kChunk, n - first)));
    fill(values);
    for (float& value : values) value = static_cast<float>(static_cast<double>(value) * (2 * rounded) - rounded);
    sink(first, values);
  }
}

void TorchRandom::normal(int64_t n, const Sink& sink) {
  assert(n >= kLeastNormals);
  std::array<float, kChunk> chunk;
  for (int64_t first = 0; first < n; first += kChunk) {
    const std::span values(chunk.data(), static_cast<size_t>(std::min(kChunk, n - first)));
    fill(values);
    for (size_t group = 0; group + kGroup <= values.size(); group += kGroup)
      to_normal(values.subspan(group).first<kGroup>());
    sink(first, values);
  }
  if (n % kGroup == 0) return;
  // The rest is no whole group: the last 16 values are computed again from draws of their own.
  const auto last = std::span(chunk).first<kGroup>();
  fill(last);
  to_normal(last);
  sink(n - kGroup, last);
}

}  // namespace witan
