#include "witan/train/rollouts/rewards.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <numeric>
#include <optional>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/train/rollouts/math_answer.h"

namespace witan {
namespace {

std::string_view stripped(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n\f\v";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

bool is_digit(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) != 0;
}

std::optional<double> last_number(std::string_view text) {
  size_t end = text.size();
  while (end > 0 && !is_digit(text[end - 1])) --end;
  if (end == 0) return {};
  size_t begin = end;
  const auto belongs = [&](size_t i) {
    return is_digit(text[i]) || ((text[i] == '.' || text[i] == ',') && i > 0 && is_digit(text[i - 1]));
  };
  while (begin > 0 && belongs(begin - 1)) --begin;
  if (begin > 0 && text[begin - 1] == '-') --begin;
  std::string digits(text.substr(begin, end - begin));
  std::erase(digits, ',');
  double value = 0;
  const auto [rest, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (failure != std::errc()) return {};
  return value;
}

}  // namespace

double exact_reward(const SampledAnswer& sampled) {
  return stripped(sampled.completion) == stripped(sampled.answer) ? 1 : 0;
}

double number_reward(const SampledAnswer& sampled) {
  const std::optional<double> expected = last_number(sampled.answer), found = last_number(sampled.completion);
  require<DataError>(expected.has_value(), "reward = number: the answer \"", sampled.answer.substr(0, 200),
                     "\" has no number: give one, or choose reward = exact");
  return found == expected ? 1 : 0;
}

double math_reward(const SampledAnswer& sampled) {
  return same_answer(sampled.completion, sampled.answer) ? 1 : 0;
}

double length_reward(const SampledAnswer& sampled, int64_t most) {
  return 1 - std::min(1.0, static_cast<double>(sampled.tokens) / static_cast<double>(most));
}

std::vector<double> group_advantages(const std::vector<double>& rewards, bool scaled) {
  const auto n = static_cast<double>(rewards.size());
  const double mean = std::accumulate(rewards.begin(), rewards.end(), 0.0) / n;
  double squares = 0;
  for (const double reward : rewards) squares += (reward - mean) * (reward - mean);
  const double divisor = scaled ? std::sqrt(squares / std::max(n - 1, 1.0)) + 1e-4 : 1;
  std::vector<double> advantages;
  for (const double reward : rewards) advantages.push_back((reward - mean) / divisor);
  return advantages;
}

bool all_equal(const std::vector<double>& rewards) {
  return std::ranges::adjacent_find(rewards, std::not_equal_to()) == rewards.end();
}

double overlong_penalty(int64_t tokens, int64_t most, int64_t buffer, double factor) {
  if (buffer == 0) return 0;
  const double over = static_cast<double>(tokens - (most - buffer)) / static_cast<double>(buffer);
  return -factor * std::clamp(over, 0.0, 1.0);
}

}  // namespace witan
