// What is sampled for a prompt: its line in RUN/rollouts, and the row of a batch that trains on it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "witan/data/batches/batch.h"
#include "witan/train/config/config.h"
#include "witan/train/rollouts/rewards.h"

namespace witan {

// What is sampled for a prompt: an answer or, with max_turns above 1, several with the messages between them.
struct Rollout {
  // What a rollout waits for: its next answer, the reply of reward_command to the last one, or nothing. Without turns
  // it waits for its answer alone.
  enum class Next : uint8_t { answer, reply, nothing };

  int64_t row = 0;
  int64_t sampled_at = 0;                   // the step before which it was sampled, the first of steps_per_generation
  std::vector<int32_t> prompt, completion;  // the completion with its end-of-turn tokens, if it has them
  std::vector<float> logprobs;       // of the completion's tokens, under the weights that sampled them; 0: inserted
  std::vector<uint8_t> mask = {};    // of the completion's tokens: 0 for inserted ones; empty: all are sampled
  std::vector<int32_t> routes = {};  // [tokens but the last, routers, K], with router_replay
  bool ended = false;                // by an end token, a stop string or the program, rather than by its length
  SampledAnswer text = {};
  double reward = 0, advantage = 0;
  std::map<std::string, double> rewards = {};  // by kind, without their weights
  int64_t replaced = 0;                        // prompts before this one, whose answers had equal rewards
  bool skipped = false;                        // all rewards of its group are equal
  bool discarded = false;                      // and another prompt has taken its place: it is in no batch
  Next next = Next::answer;
  bool cut_by_turns = false;  // the program would have gone on after max_turns answers
  bool rewritten = false;     // the chat template would show an earlier answer otherwise than it was sampled

  bool is_sampled(size_t token) const { return mask.empty() || mask[token] != 0; }
  int64_t sampled_tokens() const;
  // Whether its sampled tokens count in the loss.
  bool is_trained(const RunConfig& config) const;
  // The number of tokens that the next answer may have.
  int64_t room(const RunConfig& config) const;

  // A line of RUN/rollouts (docs/formats/rollouts.md).
  std::string to_line() const;
  static Rollout of_line(std::string_view line, std::string_view where);
};

// A micro-batch of rows that are one rollout each; tokens of those that are not trained, and inserted ones, do not
// count. The columns are those of make_policy_objective(). Throws DataError if one is longer than seq_length + 1.
Batch batch_of(const std::vector<Rollout>& rollouts, const RunConfig& config);

// The argument of StepRoutes::replay() for the rows of a rank: [routers, micro-batches, T, K]. Padding
// has any experts. Throws DataError if a rollout has other routes than its tokens need.
std::vector<int32_t> routes_of(const std::vector<Rollout>& rollouts, const RunConfig& config);

}  // namespace witan
