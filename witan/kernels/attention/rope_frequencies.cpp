#include <algorithm>
#include <cmath>
#include <numbers>

#include "witan/kernels/attention/rope.h"

namespace witan::kernels {
namespace {

constexpr double kTurn = 2 * std::numbers::pi;

// The frequency before any scaling.
double trained_frequency(const RopeArgs& args, int64_t pair) {
  const auto i = static_cast<double>(pair);
  if (args.turning_pairs > 0 && pair >= args.turning_pairs) return 0;
  if (!args.half_truncated) return std::pow(args.base, -2 * i / static_cast<double>(args.dims));
  const int64_t turning = args.dims / 4;
  return pair < turning ? std::pow(args.base, -i / static_cast<double>(turning - 1)) : 0;
}

double llama3(const RopeScaling& scaling, double frequency) {
  const double turns = static_cast<double>(scaling.original_positions) * frequency / kTurn;
  if (turns > scaling.high_freq_factor) return frequency;
  if (turns < scaling.low_freq_factor) return frequency / scaling.factor;
  const double kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - kept) * frequency / scaling.factor + kept * frequency;
}

// The share of interpolation for a pair. A ramp of length 0 is a step.
double yarn_ramp(const RopeArgs& args, int64_t pair) {
  const double first = std::max(rope_pair_of(args, args.scaling.beta_fast), 0.0),
               last = std::min(rope_pair_of(args, args.scaling.beta_slow), static_cast<double>(args.dims - 1));
  const double length = std::abs(last - first) < 1e-9 ? 1e-3 : last - first;
  return std::clamp((static_cast<double>(pair) - first) / length, 0.0, 1.0);
}

double scaled(const RopeArgs& args, int64_t pair, double frequency) {
  switch (args.scaling.type) {
    case RopeScaling::Type::linear:
      return frequency / args.scaling.factor;
    case RopeScaling::Type::llama3:
      return llama3(args.scaling, frequency);
    case RopeScaling::Type::yarn: {
      const double interpolated = yarn_ramp(args, pair);
      return (1 - interpolated) * frequency + interpolated * frequency / args.scaling.factor;
    }
    case RopeScaling::Type::longrope:
      return frequency / args.scaling.factors[static_cast<size_t>(pair)];
    default:
      return frequency;
  }
}

}  // namespace

std::vector<double> rope_frequencies(const RopeArgs& args) {
  std::vector<double> frequencies(static_cast<size_t>(args.dims / 2));
  for (int64_t pair = 0; pair < args.dims / 2; ++pair)
    frequencies[static_cast<size_t>(pair)] = scaled(args, pair, trained_frequency(args, pair));
  return frequencies;
}

double rope_pair_of(const RopeArgs& args, double turns) {
  const auto positions = static_cast<double>(args.scaling.original_positions);
  return static_cast<double>(args.dims) * std::log(positions / (turns * kTurn)) / (2 * std::log(args.base));
}

double rope_turns_of(const RopeArgs& args, double pair) {
  const auto positions = static_cast<double>(args.scaling.original_positions);
  return positions / kTurn * std::pow(args.base, -2 * pair / static_cast<double>(args.dims));
}

}  // namespace witan::kernels
