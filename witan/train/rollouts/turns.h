// Conversations of several turns (max_turns): after each answer reward_command writes the next messages, or the reward.
// Ranks sample and ask in rounds: all answers that conversations wait for, then the replies to all of them, so that
// ranks that sample together take the same steps, however long their conversations are.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "witan/comm/host_group.h"
#include "witan/train/rollouts/answer_rewards.h"
#include "witan/train/rollouts/sampling.h"
#include "witan/train/rollouts/turn_template.h"

namespace witan {

// All must outlive its use.
struct Conversations {
  const RunConfig& config;
  const AnswerRewards& rewards;
  const AnswerEnds& ends;
  const TurnTemplate& turns;
  HostGroup& world;  // a group of all ranks and its stream, for texts
  Stream& host;
};

// What rounds took on this rank.
struct RoundCosts {
  int64_t tokens_read = 0;
  double sampling_s = 0, rewards_s = 0;
  RunEnd stopped = RunEnd::none;
};

// Continues rollouts until none waits for anything; collective. `asks`: the sorted rows whose replies this rank asks
// for, each of them on one rank. `on_change` gets a rollout each time that an answer has ended or was replied to.
// Returns why a program failed on some rank, on all ranks; empty: none did. Then some rollouts wait for their replies
// still. Ends early, on all ranks, once the sampler of one has stopped.
std::string sample_conversations(const Conversations& with, RolloutSampler& sampler, std::vector<Rollout>& rollouts,
                                 std::span<const int64_t> asks, RoundCosts& costs, const OnAnswer& on_change);

}  // namespace witan
