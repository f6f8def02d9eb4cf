// Rewards of sampled answers by rules, and the advantages that they give within a group.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace witan {

// An answer that a model sampled, as rewards see it.
struct SampledAnswer {
  std::string prompt, completion;  // of several turns the last answer
  std::string answer;              // the reference: the last answer of the conversation that the prompt is from
  int64_t tokens = 0;              // after the prompt: of the completion, with the one that ended it, and of all turns

  // With max_turns above 1:
  int64_t turn = 0;                   // the number of the answer, from 1; 0: without turns
  bool final = false;                 // no turn can follow
  std::string messages = {};          // a JSON array: the conversation after the prompt, up to this answer
  std::optional<double> judged = {};  // the reward of reward_command, which judges the last answer
};

// 1 if the completion is the answer, apart from white space around them, else 0.
double exact_reward(const SampledAnswer& sampled);

// 1 if the last number in the completion equals the last number in the answer, else 0. Numbers are decimal, with an
// optional sign and commas between thousands. Throws DataError if the answer has none.
double number_reward(const SampledAnswer& sampled);

// 1 if both have the same value as answers to a mathematical problem, else 0 (math_answer.h).
double math_reward(const SampledAnswer& sampled);

// 1 for an empty answer, falling linearly to 0 at `most` tokens.
double length_reward(const SampledAnswer& sampled, int64_t most);

// The advantages of a group's rewards: r - mean, divided by the standard deviation (of n - 1) + 1e-4 if `scaled`
// (GRPO, arXiv:2402.03300; without it Dr. GRPO, arXiv:2503.20783).
std::vector<double> group_advantages(const std::vector<double>& rewards, bool scaled);

// Whether all rewards of a group are equal, which leaves nothing to learn from it.
bool all_equal(const std::vector<double>& rewards);

// DAPO's penalty for answers that come close to the limit of `most` tokens (arXiv:2503.14476, equation 13): 0 up to
// most - buffer tokens, falling linearly to -factor at `most`. 0 without a buffer.
double overlong_penalty(int64_t tokens, int64_t most, int64_t buffer, double factor);

}  // namespace witan
