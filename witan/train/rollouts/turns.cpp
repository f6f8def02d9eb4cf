#include "witan/train/rollouts/turns.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "witan/base/json.h"
#include "witan/base/process.h"
#include "witan/base/text.h"
#include "witan/comm/texts.h"

namespace witan {
namespace {

using Next = Rollout::Next;

std::string dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void add_messages(Rollout& rollout, const std::vector<Json>& more) {
  Json messages = rollout.text.messages.empty() ? Json::array() : parse_json(rollout.text.messages, "messages");
  for (const Json& message : more) messages.push_back(message);
  rollout.text.messages = dumped(messages);
}

void note_answer(Rollout& rollout) {
  ++rollout.text.turn;
  rollout.mask.resize(rollout.completion.size(), 1);
  add_messages(rollout, {{{"role", "assistant"}, {"content", rollout.text.completion}}});
  rollout.next = Next::reply;
}

// Whether no turn can follow the answer.
bool is_final(const Rollout& rollout, const RunConfig& config) {
  return !rollout.ended || rollout.text.turn >= config.rollout.max_turns;
}

// What the program's reply makes of a rollout, as ranks send it to each other: an object with the "row" and its
// "reward", or with "messages" and the "tokens" that they and the beginning of the next answer have. "cut": the
// messages did not fit.
Json outcome_of(const Conversations& with, const Rollout& rollout, const ProgramReply& reply) try {
  Json outcome = {{"row", rollout.row}};
  const bool wants_more = !reply.messages.empty(), final = is_final(rollout, with.config);
  if (reply.reward) outcome["reward"] = *reply.reward;
  if (!wants_more || final) {
    outcome["cut_by_turns"] = wants_more && rollout.ended;
    return outcome;
  }
  std::vector<ChatMessage> messages;
  std::vector<Json> shown;
  for (const std::string& json : reply.messages) {
    messages.push_back({{}, {}, json});
    Json message = parse_json(json, "a message");
    if (message.at("role") != "assistant") shown.push_back(std::move(message));
  }
  const bool by_token = std::ranges::find(with.ends.tokens, rollout.completion.back()) != with.ends.tokens.end();
  const TurnTemplate::Turn turn = with.turns.next(rollout.text.completion, by_token, std::move(messages));
  if (std::ssize(turn.tokens) >= rollout.room(with.config)) {
    outcome["cut"] = true;
    return outcome;
  }
  outcome.erase("reward");
  outcome["messages"] = std::move(shown);
  outcome["tokens"] = turn.tokens;
  outcome["rewritten"] = turn.rewritten;
  return outcome;
} catch (const DataError& error) {
  throw RewardError(cat("reward_command = ", with.config.rollout.reward_command, ": its messages for row ", rollout.row,
                        " cannot follow the answer: ", error.what()));
}

void apply(Rollout& rollout, const Json& outcome) {
  rollout.cut_by_turns = outcome.value("cut_by_turns", false);
  if (outcome.value("cut", false)) rollout.ended = false;  // which makes it final
  if (outcome.contains("reward")) {
    rollout.rewards[WeightedReward{WeightedReward::Kind::command}.name()] = outcome.at("reward").get<double>();
    rollout.next = Next::nothing;
  }
  if (!outcome.contains("tokens")) return;
  const auto tokens = outcome.at("tokens").get<std::vector<int32_t>>();
  rollout.completion.insert(rollout.completion.end(), tokens.begin(), tokens.end());
  rollout.logprobs.resize(rollout.completion.size(), 0.0f);
  rollout.mask.resize(rollout.completion.size(), 0);
  rollout.rewritten = rollout.rewritten || outcome.at("rewritten").get<bool>();
  add_messages(rollout, outcome.at("messages").get<std::vector<Json>>());
  rollout.next = Next::answer;
}

// The outcomes of the rows that this rank asks for.
Json ask(const Conversations& with, std::vector<Rollout>& rollouts, std::span<const int64_t> asks) {
  std::vector<const Rollout*> asking;
  std::vector<SampledAnswer> sampled;
  for (Rollout& rollout : rollouts)
    if (rollout.next == Next::reply && std::ranges::binary_search(asks, rollout.row)) {
      rollout.text.final = is_final(rollout, with.config);
      asking.push_back(&rollout);
      sampled.push_back(rollout.text);
    }
  const std::vector<ProgramReply> replies = run_conversation_program(with.rewards.program(), sampled);
  Json outcomes = Json::array();
  for (size_t i = 0; i < asking.size(); ++i) outcomes.push_back(outcome_of(with, *asking[i], replies[i]));
  return outcomes;
}

struct Round {
  std::map<int64_t, Json> outcomes;  // by row
  std::string failure;
  bool stopped = false;  // the sampler of some rank was asked to
};

// What all ranks have been replied.
Round exchange_outcomes(const Conversations& with, const Json& own) {
  Json all = Json::array();
  for (const std::string& of_rank : gather_texts(with.world, with.host, dumped(own)))
    all.push_back(parse_json(of_rank, "replies of a rank"));
  all = parse_json(broadcast_text(with.world, with.host, dumped(all), 0), "replies of all ranks");
  Round round;
  for (const Json& of_rank : all) {
    if (round.failure.empty()) round.failure = of_rank.value("failure", std::string());
    round.stopped |= of_rank.value("stopped", false);
    for (const Json& outcome : of_rank.at("outcomes")) round.outcomes[outcome.at("row").get<int64_t>()] = outcome;
  }
  return round;
}

Round ask_all(const Conversations& with, std::vector<Rollout>& rollouts, std::span<const int64_t> asks, bool stopped) {
  Json own = {{"outcomes", Json::array()}, {"stopped", stopped}};
  try {
    if (!stopped) own["outcomes"] = ask(with, rollouts, asks);
  } catch (const RewardError& error) {
    own["failure"] = error.what();
  }
  return exchange_outcomes(with, own);
}

}  // namespace

std::string sample_conversations(const Conversations& with, RolloutSampler& sampler, std::vector<Rollout>& rollouts,
                                 std::span<const int64_t> asks, RoundCosts& costs, const OnAnswer& on_change) {
  while (true) {
    std::vector<Rollout*> waiting;
    for (Rollout& rollout : rollouts)
      if (rollout.next == Next::answer) waiting.push_back(&rollout);
    Stopwatch watch;
    costs.tokens_read += sampler.sample(waiting, [&](Rollout& rollout) {
      note_answer(rollout);
      on_change(rollout);
    });
    costs.sampling_s += watch.seconds();
    watch = {};
    const Round round = ask_all(with, rollouts, asks, sampler.stopped() != RunEnd::none);
    int64_t open = 0;
    for (Rollout& rollout : rollouts)
      if (const auto outcome = round.outcomes.find(rollout.row); outcome != round.outcomes.end()) {
        apply(rollout, outcome->second);
        on_change(rollout);
        if (rollout.next != Next::nothing) ++open;
      }
    costs.rewards_s += watch.seconds();
    if (!round.failure.empty() || round.stopped) return round.failure;
    const std::vector<int64_t> of_ranks = gather_numbers(with.world, with.host, open);
    if (std::ranges::all_of(of_ranks, [](int64_t count) { return count == 0; })) return {};
  }
}

}  // namespace witan
