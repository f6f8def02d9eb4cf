#include "witan/data/megatron/blend.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <string_view>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan::megatron {
namespace {

std::string trimmed(std::string_view word) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = word.find_first_not_of(kSpace);
  if (begin == word.npos) return "";
  return std::string(word.substr(begin, word.find_last_not_of(kSpace) - begin + 1));
}

std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    if (std::string word = trimmed(std::string_view(list).substr(begin, end - begin)); !word.empty())
      words.push_back(std::move(word));
    begin = end + 1;
  }
  return words;
}

std::optional<double> number(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

// numpy.sum of float64 (pairwise_sum of numpy/_core/src/umath/loops_utils.h.src): eight sums side by side in blocks of
// up to 128 numbers, and halves above.
double pairwise_sum(std::span<const double> values) {
  constexpr size_t kBlock = 128, kSums = 8;
  const size_t n = values.size();
  if (n < kSums) {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum;
  }
  if (n > kBlock) {
    const size_t half = n / 2 - n / 2 % kSums;
    return pairwise_sum(values.first(half)) + pairwise_sum(values.subspan(half));
  }
  std::array<double, kSums> r;
  std::copy_n(values.begin(), kSums, r.begin());
  size_t i = kSums;
  for (; i < n - n % kSums; i += kSums)
    for (size_t j = 0; j < kSums; ++j) r[j] += values[i + j];
  double sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
  for (; i < n; ++i) sum += values[i];
  return sum;
}

// Rounded by itself: contracted with the subtraction that follows, near ties would fall otherwise than Megatron-Core's.
[[gnu::noinline]] double product(double a, double b) {
  return a * b;
}

// Takes `size` samples, each from the dataset that lags most behind its weight (the first of equal ones). No dataset
// gives more than its limit.
BlendIndex blended(std::span<const double> weights, std::span<const int64_t> limits, int64_t size) {
  BlendIndex index;
  index.dataset.reserve(static_cast<size_t>(size));
  index.sample.reserve(static_cast<size_t>(size));
  std::vector<int64_t> taken(weights.size(), 0);
  for (int64_t k = 0; k < size; ++k) {
    const double at = std::max(static_cast<double>(k), 1.0);
    size_t furthest = 0;
    double most = -std::numeric_limits<double>::infinity();
    for (size_t d = 0; d < weights.size(); ++d) {
      if (taken[d] == limits[d]) continue;
      const double lag = product(weights[d], at) - static_cast<double>(taken[d]);
      if (lag <= most) continue;
      most = lag;
      furthest = d;
    }
    index.dataset.push_back(static_cast<int16_t>(furthest));
    index.sample.push_back(taken[furthest]++);
  }
  return index;
}

}  // namespace

Blend parse_blend(const std::string& list, const std::string& key) {
  const std::vector<std::string> words = words_of(list);
  require<ConfigError>(!words.empty(), key, ": names no dataset: give prefixes, or weights and prefixes by turns");
  Blend blend;
  if (words.size() % 2 == 0)
    for (size_t i = 0; i < words.size(); i += 2)
      if (const auto weight = number(words[i])) {
        require<ConfigError>(*weight > 0 && std::isfinite(*weight), key, ": the weight ", words[i],
                             " is not a number above 0; leave out a dataset that is not to be read");
        blend.weights.push_back(*weight);
        blend.prefixes.push_back(words[i + 1]);
      }
  if (blend.weights.empty()) {
    blend.prefixes = words;
    return blend;
  }
  require<ConfigError>(2 * blend.weights.size() == words.size(), key, ": ", clipped(list),
                       ": some datasets have a weight and some have none: write weights and prefixes by turns, or "
                       "prefixes alone");
  return blend;
}

std::vector<double> normalized(const std::vector<double>& weights) {
  const double sum = pairwise_sum(weights);
  std::vector<double> shares;
  for (const double weight : weights) shares.push_back(weight / sum);
  return shares;
}

Shares parse_split(const std::string& split) {
  const std::string wanted =
      cat("split = ", clipped(split), " must be up to three shares, of training, validation and test, as 969,30,1");
  std::vector<double> values;
  for (const std::string& word : words_of(split)) {
    const auto value = number(word);
    require<ConfigError>(value && *value >= 0 && *value <= 1e15, wanted);
    values.push_back(*value);
  }
  require<ConfigError>(!values.empty() && values.size() <= 3, wanted);
  values.resize(3);
  require<ConfigError>(pairwise_sum(values) > 0, wanted);
  Shares shares;
  double end = 0;
  const std::vector<double> parts = normalized(values);
  for (size_t i = 0; i < shares.size(); ++i) {
    const double begin = end;
    end += parts[i];
    if (end > begin) shares[i] = Share{begin, end};
  }
  return shares;
}

BlendIndex build_blending_indices(std::span<const double> weights, int64_t size) {
  const std::vector<int64_t> limits(weights.size(), INT64_MAX);
  return blended(weights, limits, size);
}

BlendIndex build_exhaustive_blending_indices(std::span<const int64_t> sizes) {
  const int64_t all = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  std::vector<double> shares;
  for (const int64_t size : sizes) shares.push_back(static_cast<double>(size) / static_cast<double>(all));
  return blended(shares, sizes, all);
}

}  // namespace witan::megatron
