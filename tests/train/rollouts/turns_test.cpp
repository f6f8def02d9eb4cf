// Runs that sample conversations of several turns.
#include "witan/train/rollouts/turns.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "support/long_form.h"
#include "train/rollouts/sampling_runs.h"
#include "witan/base/json.h"

namespace witan {
namespace {

using test::message_of;
using testing::layer_kinds, testing::model_layouts, testing::ModelLayout;

class TurnRuns : public testing::SamplingRuns {
 protected:
  // The answers within a rollout's completion: what was sampled between inserted tokens.
  static int64_t answers_in(const Rollout& rollout) {
    int64_t count = 0;
    for (size_t i = 0; i < rollout.completion.size(); ++i)
      if (rollout.is_sampled(i) && (i == 0 || !rollout.is_sampled(i - 1))) ++count;
    return count;
  }
  void expect_equal_runs(const std::string& run, const std::string& expected, int64_t steps) const {
    EXPECT_EQ(losses(run), losses(expected));
    EXPECT_EQ(figures(run, "reward"), figures(expected, "reward"));
    for (int64_t step = 1; step <= steps; ++step) EXPECT_EQ(rollouts(run, step), rollouts(expected, step));
  }
};

TEST_F(TurnRuns, KeepWhatWasSampledAndInsertTheRest) {
  RunConfig config = conversing("turns");
  config.train.train_iters = 1;
  run(config);
  const std::vector<Rollout> all = answers("turns", 1);
  std::vector<int64_t> of_turns(4);
  int64_t inserted = 0;
  for (const Rollout& rollout : all) {
    ASSERT_GE(rollout.text.turn, 1);
    ASSERT_LE(rollout.text.turn, 3);
    ++of_turns[static_cast<size_t>(rollout.text.turn)];
    EXPECT_EQ(answers_in(rollout), rollout.text.turn);
    ASSERT_EQ(rollout.mask.size(), rollout.completion.size());
    for (size_t i = 0; i < rollout.completion.size(); ++i)
      EXPECT_EQ(rollout.logprobs[i] == 0, !rollout.is_sampled(i)) << "a sampled token is never certain here";
    const Json messages = parse_json(rollout.text.messages, "messages");
    EXPECT_EQ(std::ssize(messages), 2 * rollout.text.turn - 1);
    EXPECT_EQ(messages.back().at("content"), rollout.text.completion);
    inserted += std::ssize(rollout.completion) - rollout.sampled_tokens();
  }
  EXPECT_GT(of_turns[1], 0);
  EXPECT_GT(of_turns[2], 0);
  EXPECT_GT(of_turns[3], 0);
  const auto rows = static_cast<double>(all.size());
  EXPECT_DOUBLE_EQ(figures("turns", "turns")[0],
                   static_cast<double>(of_turns[1] + 2 * of_turns[2] + 3 * of_turns[3]) / rows);
  EXPECT_DOUBLE_EQ(figures("turns", "inserted_tokens")[0], static_cast<double>(inserted) / rows);
  EXPECT_GT(figures("turns", "cut_by_turns")[0], 0);
  EXPECT_EQ(figures("turns", "logprob_difference"), std::vector<double>{0});
}

// Inserted tokens have no gradient, whatever their log probabilities and advantages are, but later answers read them.
TEST_F(TurnRuns, TrainOnSampledTokensAlone) {
  RunConfig config = conversing("turns");
  config.model.vocab_size = 259;
  Rollout rollout{.prompt = {1, 2}, .completion = {3, 4, 5, 6}, .logprobs = {-1, 0, 0, -2}, .mask = {1, 0, 0, 1}};
  rollout.advantage = 0.5;
  config.data.seq_length = 6;
  const Batch batch = batch_of({rollout}, config);
  EXPECT_EQ(batch.tokens, (std::vector<int32_t>{1, 2, 3, 4, 5, 0}));
  EXPECT_EQ(batch.loss_mask, (std::vector<float>{0, 1, 0, 0, 1, 0}));
  EXPECT_EQ(batch.columns[0].values, (std::vector<float>{0, 0.5, 0, 0, 0.5, 0}));
  EXPECT_EQ(batch.columns[1].values, (std::vector<float>{0, -1, 0, 0, -2, 0}));
  EXPECT_EQ(batch.loss_tokens, 2);
}

// States of ended answers are continued, of every kind of layer.
TEST_F(TurnRuns, SampleWithTheLogProbabilitiesOfTraining) {
  for (const auto& [name, change] : layer_kinds()) {
    SCOPED_TRACE(name);
    RunConfig config = conversing(name);
    config.model.moe.num_experts = name == "groups of experts" ? 8 : 4;
    change(config.model);
    config.parallel.batch_invariant_mode = true;
    config.train.train_iters = 2;
    run(config);
    EXPECT_GT(figures(name, "turns")[0], 1.5);
    EXPECT_EQ(figures(name, "logprob_difference"), (std::vector<double>{0, 0}));
    // Conversations whose states are gone are read again, and have the same answers.
    config.train.run = "read again, " + name;
    config.rollout.rollout_batch_size = 3;
    run(config);
    expect_equal_runs(config.train.run, name, 2);
    EXPECT_GT(figures(config.train.run, "prompt_tokens_read")[0], figures(name, "prompt_tokens_read")[0]);
  }
}

TEST_F(TurnRuns, SampleInEveryLayout) {
  for (const int64_t experts : {0, 4}) {
    RunConfig config = with_layers(conversing(cat("one rank, experts ", experts)), experts);
    config.rollout.num_generations = 2;
    config.rollout.max_num_gen_batches = 2;
    run(config);
    EXPECT_GT(figures(config.train.run, "turns")[0], 1.5);
    std::vector<ModelLayout> layouts = model_layouts();
    layouts.push_back({"replicas", 2, [](ParallelConfig&) {}});
    layouts.push_back({"experts", 2, [](ParallelConfig& p) { p.expert_model_parallel_size = 2; }, true, true});
    layouts.push_back({"fsdp", 2, [](ParallelConfig& p) { p.data_parallel_sharding_strategy = "optim_grads_params"; }});
    for (const ModelLayout& layout : layouts)
      if (const auto other = laid_out(config, layout)) {
        SCOPED_TRACE(other->train.run);
        run(*other);
        EXPECT_EQ(figures(other->train.run, "logprob_difference"), (std::vector<double>{0, 0}));
        expect_answers(other->train.run, config.train.run, layout.same_bits);
        if (layout.same_bits) {
          EXPECT_EQ(figures(other->train.run, "reward"), figures(config.train.run, "reward"));
        }
      }
  }
}

// Layers whose states cannot be cut, on other stages than layers whose states can.
TEST_F(TurnRuns, AgreeOnWhatStagesReadAgain) {
  RunConfig config = conversing("one");
  config.model.num_layers = 4;
  testing::add_hybrid_layers(config.model);
  config.parallel.deterministic = config.parallel.batch_invariant_mode = true;
  config.rollout.rollout_batch_size = 3;
  config.train.train_iters = 1;
  run(config);
  config.train.run = "stages";
  config.parallel.ranks = config.parallel.pipeline_model_parallel_size = 2;
  run(config);
  EXPECT_EQ(rollouts("stages", 1), rollouts("one", 1));
}

// All tokens of a conversation, inserted ones too, are trained with the experts that they had in the sampler.
TEST_F(TurnRuns, ReplayTheRoutesOfWholeConversations) {
  RunConfig config = conversing("routed");
  config.model.moe.num_experts = 4;
  config.train.train_iters = 2;
  config.parallel.ranks = 2;
  run(config);
  config.rollout.router_replay = true;
  for (const int64_t at_once : {0, 3}) {
    config.train.run = cat("replayed ", at_once);
    config.rollout.rollout_batch_size = at_once;
    run(config);
    EXPECT_EQ(losses(config.train.run), losses("routed"));
    EXPECT_EQ(figures(config.train.run, "logprob_difference"), (std::vector<double>{0, 0}));
    for (const Rollout& rollout : answers(config.train.run, 2))
      EXPECT_EQ(rollout.routes.size(), (rollout.prompt.size() + rollout.completion.size() - 1) * 2 *
                                           static_cast<size_t>(config.model.moe.moe_router_topk));
  }
}

// A conversation ends where the next messages leave no room for an answer; the program is asked for its reward if it
// has not given one.
TEST_F(TurnRuns, EndWhereMessagesDoNotFit) {
  RunConfig config = conversing("long");
  config.train.train_iters = 1;
  const std::string long_result(50, 'x');
  config.rollout.reward_command =
      cat(R"(awk '/"final":true/ { print 7; next } { print "{\"messages\": [{\"role\": \"tool\", \"content\": \")",
          long_result, R"(\"}]}" }')");
  run(config);
  for (const Rollout& rollout : answers("long", 1)) {
    EXPECT_EQ(rollout.text.turn, 1);
    EXPECT_FALSE(rollout.ended);
    EXPECT_EQ(rollout.reward, 7);
    EXPECT_EQ(rollout.sampled_tokens(), std::ssize(rollout.completion));
  }
  EXPECT_EQ(figures("long", "cut_completions")[0], 1);
  EXPECT_EQ(figures("long", "cut_by_turns")[0], 0);
}

TEST_F(TurnRuns, NameProgramsThatFailBetweenTurns) {
  RunConfig config = conversing("failing");
  config.train.train_iters = 1;
  config.parallel = {2, 1, 1};
  const auto message = [&](const std::string& command) {
    config.rollout.reward_command = command;
    return message_of<Error>([&] { run(config); });
  };
  const auto expect = [](const std::string& found, const std::string& part) {
    EXPECT_NE(found.find(part), std::string::npos) << found;
  };
  expect(message(R"(awk '/"turn":2/ { exit 7 } { print "{\"messages\": [{\"role\": \"tool\", \"content\": \"1\"}], )"
                 R"(\"reward\": 0}" }')"),
         "it ended with code 7");
  expect(message(R"(awk '{ print "{\"messages\": [{\"role\": \"tool\", \"content\": \"1\"}]}" }')"),
         "of its output has no reward, and its answer is \"final\": no turn can follow it");
  config.rollout.reward_timeout = 0.3;
  expect(message("sleep 1000"), "it has not ended after reward_timeout = 0.3 s");
  config.rollout.reward_timeout = 60;
}

// The program is asked again for the replies alone that it has not given.
TEST_F(TurnRuns, KeepRepliesWhenALaterOneFails) {
  RunConfig config = conversing("whole");
  config.train.train_iters = 1;
  config.parallel = {2, 1, 1};
  const fs::path down = folder_ / "down", log = folder_ / "log";
  const std::string begin = "awk '",
                    start = cat("BEGIN { system(\"echo x >> ", log.string(), "\"); down = system(\"test -e ",
                                down.string(), "\") == 0 } down && /\"turn\":2/ { exit 9 } ");
  config.rollout.reward_command.insert(begin.size(), start);
  const auto runs_of_program = [&] {
    const std::string lines = read_file(log);
    fs::remove(log);
    return std::ssize(lines) / 2;
  };
  run(config);
  const int64_t whole = runs_of_program();
  config.train.run = "repaired";
  std::ofstream(down) << "x";
  const std::string message = message_of<Error>([&] { run(config); });
  EXPECT_NE(message.find("it ended with code 9"), std::string::npos) << message;
  fs::remove(down);
  run(config);
  EXPECT_EQ(runs_of_program(), whole + 2) << "those of both ranks that have failed";
  expect_equal_runs("repaired", "whole", 1);
}

TEST_F(TurnRuns, ContinueToTheBitAfterTheyWereKilled) {
  RunConfig config = conversing("whole");
  config.rollout.steps_per_generation = 2;
  config.rollout.rollout_batch_size = 5;
  config.train.train_iters = 4;
  config.train.save_interval = 1;
  run(config);
  const auto all = static_cast<double>(written("whole"));
  const Philox moments(2, Philox::stream_of("moments"));
  const int64_t kills = testing::steps_of(4, 50);
  for (int64_t i = 0; i < kills; ++i) {
    SCOPED_TRACE(i);
    fs::remove_all(folder_ / "killed");
    config.train.run = "killed";
    run_until_killed(config, static_cast<uint64_t>(all * moments.uniform(static_cast<uint64_t>(i))));
    run(config);
    expect_equal_runs("killed", "whole", 4);
  }
}

TEST_F(TurnRuns, RefuseWhatLeavesNoTurns) {
  RunConfig config = conversing("refused");
  config.model.vocab_size = 259;
  config.rollout.reward = "exact";
  EXPECT_NE(message_of<ConfigError>([&] {
              config.validate();
            }).find("with max_turns = 3 asks reward_command for what follows an answer, and reward = exact"),
            std::string::npos);
  config = conversing("rewriting");
  write_file_atomically(folder_ / "hf/chat_template.jinja",
                        "{% for m in messages %}{{ m.role + ':' }}{% if loop.last or m.role != 'assistant' %}"
                        "{{ m.content }}{% endif %}<|im_end|>{% endfor %}"
                        "{% if add_generation_prompt %}assistant:{% endif %}");
  const std::string message = message_of<ConfigError>([&] { run(config); });
  EXPECT_NE(message.find("after a tool's result the chat template writes an answer otherwise than it was sampled"),
            std::string::npos)
      << message;
}

}  // namespace
}  // namespace witan
