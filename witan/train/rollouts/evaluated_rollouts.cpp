// Answers to prompts of the validation split, which are rewarded and not trained on.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "witan/base/json.h"
#include "witan/comm/texts.h"
#include "witan/train/rollouts/rollouts.h"

namespace witan {

// Those that this rank samples: all with ranks that sample together, else its share. Rows of different prompts are in
// different groups.
std::vector<Rollout> Rollouts::evaluated_prompts() const {
  const RunConfig& config = *parts_.config;
  const SampleSource& samples = *parts_.data.held_out;
  const Group& context = parts_.groups.of(Axis::context);
  const Layout& layout = parts_.groups.layout();
  const int64_t count = std::min(config.rollout.rollout_eval_prompts, samples.per_epoch());
  const bool all = samples_in_lockstep(config);
  const int64_t shares = all ? 1 : int64_t{layout.data_ranks()} * context.size(),
                share = all ? 0 : int64_t{layout.data_rank(parts_.groups.rank())} * context.size() + context.rank();
  std::vector<Rollout> rollouts;
  for (int64_t i = count * share / shares; i < count * (share + 1) / shares; ++i)
    rollouts.push_back(begin_with(samples, i, i * config.rollout.num_generations));
  return rollouts;
}

std::optional<double> Rollouts::evaluate() {
  Engine& engine = parts_.engine;
  engine.gather_values();
  std::vector<Rollout> rollouts = evaluated_prompts();
  std::vector<int64_t> asks;
  if (writes_unfinished())
    for (const Rollout& rollout : rollouts) asks.push_back(rollout.row);
  std::string failure;
  const Sampling with{.stream = engine.stream(),
                      .model = engine.model(),
                      .groups = parts_.groups,
                      .config = parts_.config,
                      .tokenizer = *parts_.data.tokenizer,
                      .ends = parts_.ends,
                      .asked = parts_.asked,
                      .evaluates = true};
  const RoundCosts costs = sample_rows(with, rollouts, asks, failure, [](const Rollout&) {});
  engine.end_reading();
  if (of_all_ranks(costs.stopped) != RunEnd::none) return std::nullopt;
  if (!writes_unfinished()) rollouts.clear();
  if (failure.empty()) try {
      score(rollouts);
    } catch (const RewardError& error) {
      failure = error.what();
    }
  require_rewards(failure);
  return mean_of_ranks(rollouts);
}

// Rank 0 adds the rewards in the order of their rows, so that the mean does not depend on the layout.
std::optional<double> Rollouts::mean_of_ranks(const std::vector<Rollout>& own) {
  Json mine = Json::array();
  for (const Rollout& rollout : own) mine.push_back({rollout.row, rollout.reward});
  std::vector<std::pair<int64_t, double>> all;
  for (const std::string& of_rank : gather_texts(parts_.world, parts_.host, mine.dump()))
    for (const Json& one : parse_json(of_rank, "rewards of a rank")) all.emplace_back(one.at(0), one.at(1));
  std::ranges::sort(all);
  double sum = 0;
  for (const auto& [row, reward] : all) sum += reward;
  const Json mean = all.empty() ? Json() : Json(sum / static_cast<double>(all.size()));
  const Json shared = parse_json(broadcast_text(parts_.world, parts_.host, mean.dump(), 0), "mean reward of rank 0");
  return shared.is_null() ? std::nullopt : std::optional(shared.get<double>());
}

}  // namespace witan
