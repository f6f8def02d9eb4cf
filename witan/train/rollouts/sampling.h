// Samples answers with the weights that are trained (generate/generation_batch.h). The first answers to a prompt read
// it once and share its states; an answer that ends makes room for the next one at once.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "witan/generate/chosen_routes.h"
#include "witan/generate/generation_batch.h"
#include "witan/model/transformer.h"
#include "witan/parallel/groups.h"
#include "witan/tokenizer/tokenizer.h"
#include "witan/train/config/config.h"
#include "witan/train/rollouts/rollout.h"
#include "witan/train/state/run_end.h"

namespace witan {

// Whether all ranks sample all rows together, since each needs the others' weights or experts. Otherwise the
// context-parallel ranks of a data-parallel rank divide the prompts of its rows, and the tensor-parallel ranks and
// pipeline stages of each of them sample together.
bool samples_in_lockstep(const RunConfig& config);

// What ends an answer before its greatest length.
struct AnswerEnds {
  std::vector<int32_t> tokens;
  std::vector<std::string> strings;  // rollout.stop_strings
};

// In a dry run: the largest steps that sampling makes.
void rehearse_rollouts(Stream& stream, Transformer& model, const Groups& groups, const RunConfig& config);

// Called with each answer as it ends, in any order.
using OnAnswer = std::function<void(Rollout&)>;

// All must outlive its use.
struct Sampling {
  Stream& stream;
  Transformer& model;
  const Groups& groups;
  const RunConfig& config;
  const Tokenizer& tokenizer;
  const AnswerEnds& ends;
  const ChosenRoutes* routes = nullptr;  // lent to the model, for Rollout::routes; null: they are not wanted
  std::function<RunEnd()> asked = {};    // why this rank is asked to stop, between tokens; empty: it never is
  bool evaluates = false;                // at rollout_eval_temperature, without routes
};

// Keeps the states of the answers that have ended last, from which the next ones of their conversations continue.
class RolloutSampler {
 public:
  explicit RolloutSampler(const Sampling& with);

  // Samples the next answer of each of these rollouts: tokens, log probabilities, text and whether it ended. Answers to
  // a prompt follow each other. Each is drawn by a seed of its own, made from the run's seed and its row, so that it
  // does not depend on the others. Ranks that divide the model make the same calls and get the same answers. Returns
  // the number of tokens before the answers that were read. Once a rank is asked to stop, all ranks that sample with it
  // do: answers that have not ended are then as they were before.
  int64_t sample(const std::vector<Rollout*>& rollouts, const OnAnswer& on_answer = {});
  RunEnd stopped() const { return stopped_; }

 private:
  RunEnd asked_together();

  const Sampling with_;
  GenerationBatch batch_;
  RunEnd stopped_ = RunEnd::none;
};

}  // namespace witan
