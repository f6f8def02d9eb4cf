#include "witan/train/loop/step_batches.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "witan/base/text.h"
#include "witan/train/rollouts/prompts.h"
#include "witan/train/step/objective.h"

namespace witan {
namespace {

constexpr int64_t kIdleStepsOfWarning = 10;

}  // namespace

LoaderOptions StepBatches::loader_options() const {
  const Layout& layout = parts_.groups.layout();
  LoaderOptions options;
  options.threads = 4;  // they wait for the disk, and hardly compute
  options.micro_batch_size = parts_.config->train.micro_batch_size;
  options.ramp = ramp_;
  options.data_parallel_rank = layout.data_rank(parts_.groups.rank());
  options.data_parallel_size = layout.data_ranks();
  options.batch = parts_.data.batch;
  options.batch.columns = make_objective(*parts_.config)->columns();
  return options;
}

std::string StepBatches::open(const TrainState& state) {
  if (!parts_.config->rollout.rollouts) {
    loader_.emplace(parts_.data.train, loader_options(), state.consumed_samples);
    return "";
  }
  require_prompts(*parts_.data.train);
  if (parts_.config->rollout.rollout_eval_prompts > 0) require_prompts(*parts_.data.held_out);
  rollouts_.emplace(parts_, state.sampled);
  return describe_tight_prompts(*parts_.data.train, parts_.config->rollout);
}

std::vector<Batch> StepBatches::next(int64_t step, int64_t consumed) {
  if (!rollouts_) return loader_->next();
  std::vector<Batch> batches = rollouts_->next(step, consumed);
  if (stopped() != RunEnd::none) return batches;
  idle_steps_ = rollouts_->nothing_counts() ? idle_steps_ + 1 : 0;
  return batches;
}

std::optional<double> StepBatches::held_out_reward(const std::function<void(const std::string&)>& warn) try {
  if (!rollouts_ || parts_.config->rollout.rollout_eval_prompts == 0) return std::nullopt;
  return rollouts_->evaluate();
} catch (const RewardError& error) {  // on all ranks
  warn(cat("the evaluation has no reward: ", error.what()));
  return std::nullopt;
}

void StepBatches::complete(StepResult& result) const {
  if (!rollouts_) return;
  result.scalars.update(rollouts_->figures());
  if (!nothing_counts()) return;
  const std::vector<LossSpec> of_tokens = make_objective(*parts_.config)->losses();
  std::erase_if(result.other_losses, [&](const auto& loss) {
    return std::ranges::find(of_tokens, loss.first, &LossSpec::name) != of_tokens.end();
  });
}

std::string StepBatches::warning() {
  if (idle_steps_ != kIdleStepsOfWarning) return {};
  if (const double equal = rollouts_->figures().get(kEqualGroups).value_or(0); equal < 1)
    return fmt::format(
        "no answer has been trained on for {} steps: in the last one {:.0f} % of them were in groups of equal rewards, "
        "and the others were cut and masked (mask_truncated_completions). Raise max_completion_length, or look into "
        "RUN/rollouts why answers do not end",
        kIdleStepsOfWarning, 100 * equal);
  return fmt::format(
      "the answers to each prompt have had equal rewards for {} steps (reward {:.3g}, mean of the last): nothing is "
      "learnt from them, and the weights stay as they are. Look into RUN/rollouts whether reward = {} recognises the "
      "answers; else start from a model that is sometimes right, raise num_generations, or give partial rewards",
      kIdleStepsOfWarning, rollouts_->figures().get(kReward).value_or(0), parts_.config->rollout.reward);
}

}  // namespace witan
