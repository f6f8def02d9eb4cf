// Samples answers with the weights that are trained (generate/generation_batch.h). The answers to a prompt read it once
// and share its states; an answer that ends makes room for the next one at once.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "witan/generate/chosen_routes.h"
#include "witan/model/transformer.h"
#include "witan/parallel/groups.h"
#include "witan/tokenizer/tokenizer.h"
#include "witan/train/config/config.h"
#include "witan/train/rollouts/rollouts.h"

namespace witan {

// Called with each answer as it ends, in any order.
using OnAnswer = std::function<void(const Rollout&)>;

// All must outlive its use.
struct Sampling {
  Stream& stream;
  Transformer& model;
  const Groups& groups;
  const RunConfig& config;
  const Tokenizer& tokenizer;
  const AnswerEnds& ends;
  const ChosenRoutes* routes = nullptr;  // lent to the model, for Rollout::routes; null: they are not wanted
};

// Completes rollouts that have a prompt: tokens, log probabilities, text and whether it ended. Answers to a prompt
// follow each other. Each is drawn by a seed of its own, made from the run's seed and its row, so that it does not
// depend on the others. Ranks that divide the model make the same calls and get the same answers. Returns the number of
// prompt tokens that were read.
int64_t sample_rollouts(const Sampling& with, std::vector<Rollout>& rollouts, const OnAnswer& on_answer = {});

}  // namespace witan
