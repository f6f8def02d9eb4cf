// The contents of Megatron-LM's data flags: blends of datasets, and shares of the training, validation and test splits.
// Definitions: megatron/core/datasets/utils.py, blended_megatron_dataset_config.py and helpers.cpp of
// github.com/NVIDIA/Megatron-LM. Every number equals Megatron-Core's to the bit, since samples follow from them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace witan::megatron {

struct Blend {
  std::vector<std::string> prefixes;
  std::vector<double> weights;  // as they were given; empty: each dataset counts by its samples

  bool operator==(const Blend&) const = default;
};

// Words between commas: prefixes, or weights and prefixes by turns. Throws ConfigError naming `key` where a weight is
// no number above 0, or stands beside prefixes without one.
Blend parse_blend(const std::string& list, const std::string& key);

// numpy.array(weights) / numpy.sum(weights), with NumPy's order of summation.
std::vector<double> normalized(const std::vector<double>& weights);

enum class Part : uint8_t { train, valid, test };
inline constexpr std::array kParts = {Part::train, Part::valid, Part::test};
inline constexpr std::array kPartNames = {"train", "valid", "test"};

// The beginning and end of a split, as shares of the sequences; equal for an empty split.
struct Share {
  double begin = 0, end = 0;
};
using Shares = std::array<std::optional<Share>, 3>;

// "969,30,1": up to three numbers from 0 on, not all 0. Throws ConfigError.
Shares parse_split(const std::string& split);

// The dataset that sample k comes from, and its number there.
struct BlendIndex {
  std::vector<int16_t> dataset;
  std::vector<int64_t> sample;
};

// Each sample from the dataset that lags most behind its weight. `weights` are normalised.
BlendIndex build_blending_indices(std::span<const double> weights, int64_t size);

// Every sample of datasets of these sizes once: each from the dataset that lags most behind its share, among those with
// samples left. Sizes are above 0.
BlendIndex build_exhaustive_blending_indices(std::span<const int64_t> sizes);

}  // namespace witan::megatron
