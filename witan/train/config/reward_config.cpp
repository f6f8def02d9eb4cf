// The kinds of rewards, and the rules of their keys.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/tokenizer/text/regex_finder.h"
#include "witan/train/config/config.h"

namespace witan {
namespace {

using Kind = WeightedReward::Kind;

constexpr std::array<std::pair<const char*, Kind>, 7> kKinds = {{{"exact", Kind::exact},
                                                                 {"number", Kind::number},
                                                                 {"math", Kind::math},
                                                                 {"regex", Kind::regex},
                                                                 {"format", Kind::format},
                                                                 {"length", Kind::length},
                                                                 {"command", Kind::command}}};

std::vector<std::string> parts_of(const std::string& list) {
  std::vector<std::string> parts(1);
  for (const char c : list)
    if (c == ',')
      parts.emplace_back();
    else if (c != ' ')
      parts.back() += c;
  return parts;
}

double weight_of(const std::string& text, const std::string& list) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  require<ConfigError>(error == std::errc() && end == text.data() + text.size() && std::isfinite(value) && value != 0,
                       "reward_weights = ", list, ": takes numbers other than 0 with commas between them, not ",
                       text.empty() ? "nothing" : clipped(text));
  return value;
}

Kind kind_of(const std::string& name, const std::string& list) {
  const auto found = std::ranges::find(kKinds, name, [](const auto& kind) { return std::string_view(kind.first); });
  std::vector<std::string> names;
  for (const auto& [known, kind] : kKinds) names.emplace_back(known);
  require<ConfigError>(found != kKinds.end(), "reward = ", list, ": ", name.empty() ? "nothing" : clipped(name),
                       " is no reward", suggestion(name, names),
                       ": give one or several of exact, number, math, regex, format, length and command, "
                       "with commas between them");
  return found->second;
}

}  // namespace

const char* WeightedReward::name() const {
  return std::ranges::find(kKinds, kind, [](const auto& known) { return known.second; })->first;
}

std::vector<WeightedReward> RolloutConfig::rewards() const {
  std::vector<WeightedReward> rewards;
  for (const std::string& name : parts_of(reward)) {
    const Kind kind = kind_of(name, reward);
    require<ConfigError>(std::ranges::find(rewards, kind, &WeightedReward::kind) == rewards.end(), "reward = ", reward,
                         ": ", name, " is named twice; name it once, and give it a weight (reward_weights)");
    rewards.push_back({kind});
  }
  if (reward_weights.empty()) return rewards;
  const std::vector<std::string> weights = parts_of(reward_weights);
  require<ConfigError>(weights.size() == rewards.size(), "reward_weights = ", reward_weights,
                       " must have a weight for each of reward = ", reward, ": ",
                       counted(std::ssize(rewards), "number"), " with commas between them");
  for (size_t i = 0; i < weights.size(); ++i) rewards[i].weight = weight_of(weights[i], reward_weights);
  return rewards;
}

bool RolloutConfig::rewards_by(Kind kind) const {
  const std::vector<WeightedReward> all = rewards();
  return std::ranges::find(all, kind, &WeightedReward::kind) != all.end();
}

void RolloutConfig::validate_rewards() const {
  struct Need {
    Kind kind;
    const char* key;
    const std::string& value;
  };
  for (const auto& [kind, key, value] : {Need{Kind::regex, "reward_regex", reward_regex},
                                         {Kind::format, "reward_format", reward_format},
                                         {Kind::command, "reward_command", reward_command}}) {
    require<ConfigError>(!rewards_by(kind) || !value.empty(), "reward = ", reward, " needs ", key,
                         ": set it, or leave ", WeightedReward{kind}.name(), " out of reward");
    if (value.empty() || kind == Kind::command) continue;
    try {
      const RegexFinder compiles(value, cat(key, " ="));
    } catch (const DataError& error) {
      throw ConfigError(error.what());
    }
  }
}

}  // namespace witan
