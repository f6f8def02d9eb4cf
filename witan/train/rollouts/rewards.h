// Rewards of sampled answers, and the advantages that they give within a group.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/error.h"

namespace witan {

// An answer that a model sampled, as rewards see it.
struct SampledAnswer {
  std::string prompt, completion;
  std::string answer;  // the reference: the last answer of the conversation that the prompt is from
};

// 1 if the completion is the answer, apart from white space around them, else 0.
double exact_reward(const SampledAnswer& sampled);

// 1 if the last number in the completion equals the last number in the answer, else 0. Numbers are decimal, with an
// optional sign and commas between thousands. Throws DataError if the answer has none.
double number_reward(const SampledAnswer& sampled);

// A reward program that fails: the message names the command, the cause and the way out. Nothing has been trained with
// its rewards.
class RewardError : public Error {
 public:
  explicit RewardError(const std::string& message) : Error(ExitCode::data, message) {}
};

// Rewards by a program of the user's: `command`, run by sh, reads one JSON object a line from its standard input,
// {"prompt", "completion", "answer"}, and writes a line with a number for each, in order. Nothing that a model writes
// becomes part of the command. Its standard error is shown in messages. Throws RewardError if it takes longer than
// `seconds`, ends with another code than 0, writes fewer or more lines, or something that is not a finite number; it is
// killed then, with all processes that it started in its group.
std::vector<double> run_reward_program(const std::string& command, const std::vector<SampledAnswer>& sampled,
                                       double seconds);

// The advantages of a group's rewards: r - mean, divided by the standard deviation (of n - 1) + 1e-4 if `scaled`
// (GRPO, arXiv:2402.03300; without it Dr. GRPO, arXiv:2503.20783).
std::vector<double> group_advantages(const std::vector<double>& rewards, bool scaled);

// Whether all rewards of a group are equal, which leaves nothing to learn from it.
bool all_equal(const std::vector<double>& rewards);

// DAPO's penalty for answers that come close to the limit of `most` tokens (arXiv:2503.14476, equation 13): 0 up to
// most - buffer tokens, falling linearly to -factor at `most`. 0 without a buffer.
double overlong_penalty(int64_t tokens, int64_t most, int64_t buffer, double factor);

}  // namespace witan
