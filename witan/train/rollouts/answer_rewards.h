// The rewards of a run: one or several kinds, each with a weight.
#pragma once

#include <optional>
#include <vector>

#include "witan/tokenizer/text/regex_finder.h"
#include "witan/train/config/config.h"
#include "witan/train/rollouts/reward_program.h"

namespace witan {

class AnswerRewards {
 public:
  // The configuration must outlive it.
  explicit AnswerRewards(const RolloutConfig& config);

  // What WeightedReward stands for, in the order of RolloutConfig::rewards().
  const std::vector<WeightedReward>& kinds() const { return kinds_; }
  // values[i][k]: the reward of sampled[i] by kinds()[k], without its weight. Throws RewardError.
  std::vector<std::vector<double>> values(const std::vector<SampledAnswer>& sampled) const;
  // The weighted sum of an answer's values.
  double sum(const std::vector<double>& values) const;

  // Of reward = command.
  RewardProgram program() const;

 private:
  std::vector<double> by_program(const std::vector<SampledAnswer>& sampled) const;
  double by_rule(WeightedReward::Kind kind, const SampledAnswer& sampled) const;

  const RolloutConfig& config_;
  std::vector<WeightedReward> kinds_;
  std::optional<RegexFinder> regex_, format_;
};

}  // namespace witan
