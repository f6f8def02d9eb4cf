#include "witan/train/rollouts/answer_rewards.h"

#include <string>
#include <string_view>

#include "witan/base/text.h"

namespace witan {
namespace {

using Kind = WeightedReward::Kind;

}  // namespace

AnswerRewards::AnswerRewards(const RolloutConfig& config) : config_(config), kinds_(config.rewards()) {
  if (!config.reward_regex.empty()) regex_.emplace(config.reward_regex, "reward_regex =");
  if (!config.reward_format.empty()) format_.emplace(config.reward_format, "reward_format =");
}

std::vector<std::vector<double>> AnswerRewards::values(const std::vector<SampledAnswer>& sampled) const {
  std::vector<std::vector<double>> values(sampled.size(), std::vector<double>(kinds_.size()));
  for (size_t k = 0; k < kinds_.size(); ++k) {
    if (kinds_[k].kind == Kind::command) {
      const std::vector<double> rewards = by_program(sampled);
      for (size_t i = 0; i < sampled.size(); ++i) values[i][k] = rewards[i];
      continue;
    }
    try {
      for (size_t i = 0; i < sampled.size(); ++i) values[i][k] = by_rule(kinds_[k].kind, sampled[i]);
    } catch (const DataError& error) {  // the reference or the text is not what the rule reads
      throw RewardError(error.what());
    }
  }
  return values;
}

RewardProgram AnswerRewards::program() const {
  return {config_.reward_command, config_.reward_timeout, config_.reward_workers, config_.reward_retries,
          config_.reward_memory_limit};
}

// A program that takes part in conversations has judged them while they were sampled.
std::vector<double> AnswerRewards::by_program(const std::vector<SampledAnswer>& sampled) const {
  if (config_.max_turns == 1) return run_reward_program(program(), sampled);
  std::vector<double> rewards;
  for (const SampledAnswer& one : sampled) rewards.push_back(one.judged.value());
  return rewards;
}

double AnswerRewards::sum(const std::vector<double>& values) const {
  double sum = 0;
  for (size_t k = 0; k < kinds_.size(); ++k) sum += kinds_[k].weight * values[k];
  return sum;
}

double AnswerRewards::by_rule(Kind kind, const SampledAnswer& sampled) const {
  switch (kind) {
    case Kind::exact:
      return exact_reward(sampled);
    case Kind::number:
      return number_reward(sampled);
    case Kind::math:
      return math_reward(sampled);
    case Kind::length:
      return length_reward(sampled, config_.max_completion_length);
    case Kind::format:
      return format_->matches(sampled.completion) ? 1 : 0;
    default: {
      const auto found = regex_->last(sampled.completion);
      return found ? exact_reward({sampled.prompt, std::string(*found), sampled.answer}) : 0;
    }
  }
}

}  // namespace witan
