// Answers that the training weights sample, in place of a loader's batches: groups of answers to prompts, with their
// rewards and advantages. The prompts are the run's conversations up to their last answer, which is the reference of
// rewards. Row r of the run, counted from its first step, is an answer to sample r / num_generations, and is drawn by a
// seed of its own: it depends on the weights and on r alone.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "witan/comm/host_group.h"
#include "witan/report/events/step_scalars.h"
#include "witan/train/data/run_data.h"
#include "witan/train/rollouts/answer_rewards.h"
#include "witan/train/rollouts/rollout.h"
#include "witan/train/rollouts/turn_template.h"
#include "witan/train/rollouts/turns.h"
#include "witan/train/state/train_state.h"
#include "witan/train/step/engine.h"

namespace witan {

// Throws ConfigError if the step after `state` trains on answers that were sampled at another temperature.
void require_same_temperature(const TrainState& state, const RunConfig& config);

class Rollouts {
 public:
  // All must outlive it. `world` and `host` are a group of all ranks and its stream, for texts.
  struct Parts {
    Engine& engine;
    const Groups& groups;
    const ResolvedConfig& config;
    const RunData& data;
    const RunFolder& folder;
    HostGroup& world;
    Stream& host;
    AnswerEnds ends;
    std::function<RunEnd()> asked = {};  // why this rank is asked to stop while it samples; empty: it never is
  };
  // `sampled`: the steps that were sampled last, before the run was interrupted. Throws ConfigError for a chat template
  // that conversations cannot be sampled with.
  Rollouts(Parts parts, SampledSteps sampled);

  // Collective: this rank's micro-batches of `step` (from 1), whose first row is `consumed`. At the first of
  // steps_per_generation steps it samples the answers of all of them, and rank 0 writes them to RUN/rollouts; a run
  // that resumes between reads them there. Empty if the ranks stopped instead. Throws RewardError on all ranks if a
  // reward fails, DataError if a file of RUN/rollouts is missing or is not of these rows.
  std::vector<Batch> next(int64_t step, int64_t consumed);
  // Collective: the mean reward of answers to rollout_eval_prompts prompts of the validation split, one each. Nothing
  // if the ranks stopped instead. Throws RewardError on all ranks if a reward fails.
  std::optional<double> evaluate();
  // Why next() stopped while it sampled, on all ranks: some process received a signal. Answers that had ended are kept.
  RunEnd stopped() const { return stopped_; }
  const SampledSteps& sampled() const { return sampled_; }

  // With router_replay: the routes of next()'s micro-batches, for StepRoutes::replay().
  std::vector<int32_t> take_routes() { return std::exchange(routes_, {}); }

  // Describes the rows of next(): rewards, lengths, and the shares of equal groups and of answers cut by their length.
  const StepScalars& figures() const { return figures_; }
  // Whether no row of next() is trained on, on any rank.
  bool nothing_counts() const { return nothing_counts_; }

 private:
  bool is_rank_zero() const { return parts_.groups.rank() == 0; }
  int64_t rows_of_step() const { return parts_.config->train.global_batch_size; }
  std::vector<int64_t> own_rows(int64_t first) const;
  std::vector<int64_t> rows_to_sample(int64_t consumed) const;
  void remove_old(int64_t step) const;
  Rollout begin(int64_t row) const;
  Rollout begin_with(const SampleSource& samples, int64_t prompt, int64_t row) const;
  RunEnd of_all_ranks(RunEnd own);
  void require_rewards(std::string failure);
  // Answers that were sampled before the run was interrupted, by row.
  struct Interrupted {
    std::string identity;
    std::map<int64_t, Rollout> answers;
  };
  Interrupted find_interrupted(int64_t step);
  // Whether this rank rewards and writes the rows that it samples, perhaps together with other ranks.
  bool keeps_answers() const;
  bool writes_unfinished() const;
  std::vector<Rollout> sample(int64_t step, const std::vector<int64_t>& rows, std::span<const int64_t> asks,
                              std::string& failure);
  RoundCosts sample_rows(const Sampling& with, std::vector<Rollout>& rollouts, std::span<const int64_t> asks,
                         std::string& failure, const OnAnswer& on_change);
  void score(std::vector<Rollout>& rollouts);
  void reward(std::vector<Rollout>& rollouts, std::string& failure);
  std::vector<Rollout> evaluated_prompts() const;
  std::optional<double> mean_of_ranks(const std::vector<Rollout>& own);
  std::vector<Rollout> sample_asked(int64_t step, const std::vector<int64_t>& asked, const std::vector<int64_t>& mine,
                                    std::string& failure);
  std::vector<Rollout> replace_equal(int64_t step, const std::vector<int64_t>& rows, std::vector<Rollout>& own,
                                     std::string& failure);
  void generate(int64_t step, int64_t consumed);
  void write(int64_t step, int64_t first, const std::vector<Rollout>& own, const std::vector<Rollout>& replaced) const;
  std::vector<Rollout> read(int64_t step, int64_t first) const;
  void summarize(const std::vector<Rollout>& all);

  Parts parts_;
  AnswerRewards rewards_;
  std::optional<TurnTemplate> turns_;  // with max_turns above 1
  SampledSteps sampled_;
  RunEnd stopped_ = RunEnd::none;
  StepScalars figures_;
  bool nothing_counts_ = false;
  std::vector<int32_t> routes_;
  int64_t prompt_tokens_ = 0;              // that were read for the answers of the next step's summary
  double sampling_s_ = 0, rewards_s_ = 0;  // seconds of this rank, likewise
};

}  // namespace witan
