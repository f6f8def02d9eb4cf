// The sampling of whole runs: what it reads, what ends answers, and what a run that is killed meanwhile keeps.
#include "witan/train/rollouts/sampling.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "support/long_form.h"
#include "train/rollouts/sampling_runs.h"
#include "witan/base/json.h"

namespace witan {
namespace {

using test::message_of;
using testing::layer_kinds, testing::model_layouts, testing::ModelLayout;
using SamplingRuns = testing::SamplingRuns;

// Every kind of layer, with the same weights in the sampler and in the trainer.
TEST_F(SamplingRuns, SampleWithTheLogProbabilitiesOfTraining) {
  for (const std::string dtype : {"float32", "bfloat16"})
    for (const auto& [name, change] : layer_kinds()) {
      SCOPED_TRACE(cat(name, ", ", dtype));
      RunConfig config = rewarded(cat(name, ' ', dtype));
      config.model.dtype = dtype;
      config.model.moe.num_experts = name == "groups of experts" ? 8 : 4;
      change(config.model);
      config.data.seq_length = 90;  // beyond a chunk of recurrent layers
      config.rollout.max_completion_length = 40;
      config.parallel.batch_invariant_mode = true;
      config.train.train_iters = 2;
      run(config);
      EXPECT_EQ(figures(config.train.run, "logprob_difference"), (std::vector<double>{0, 0}));
      for (const double ratio : figures(config.train.run, "policy_ratio"))
        EXPECT_NEAR(ratio, 1, 1e-5) << "a mean, whose weights add up to 1 but for rounding";
    }
}

// The loss is that of the tempered distribution, which the sampler draws from.
TEST_F(SamplingRuns, SampleAtATemperatureWithTheLogProbabilitiesOfTraining) {
  for (const std::string dtype : {"float32", "bfloat16"}) {
    RunConfig config = of_layers(cat("cold ", dtype), 0);
    config.model.dtype = dtype;
    config.rollout.rollout_temperature = 0.7;
    config.objective.kl_loss_coef = 0.05;
    run(config);
    EXPECT_EQ(figures(config.train.run, "logprob_difference"), (std::vector<double>{0, 0}));
    EXPECT_EQ(figures(config.train.run, "kl_loss")[0], 0) << "the reference has the policy's temperature";
    for (const ModelLayout& layout : model_layouts())
      if (auto other = laid_out(config, layout); other && layout.ranks <= 2) {
        SCOPED_TRACE(cat(other->train.run, ", ", dtype));
        other->train.run += dtype;
        run(*other);
        EXPECT_EQ(figures(other->train.run, "logprob_difference"), (std::vector<double>{0, 0}));
        if (layout.same_bits) expect_answers(other->train.run, config.train.run, true);
      }
    RunConfig warm = config;
    warm.train.run = cat("warm ", dtype);
    warm.rollout.rollout_temperature = 1;
    run(warm);
    EXPECT_LT(figures(config.train.run, "policy_entropy")[0], figures(warm.train.run, "policy_entropy")[0]);
    EXPECT_NE(rollouts(config.train.run, 1), rollouts(warm.train.run, 1));
  }
}

TEST_F(SamplingRuns, SampleInEveryLayout) {
  for (const int64_t experts : {0, 4}) {
    const RunConfig config = of_layers(cat("one rank, experts ", experts), experts);
    run(config);
    for (const ModelLayout& layout : model_layouts())
      if (const auto other = laid_out(config, layout)) {
        SCOPED_TRACE(other->train.run);
        run(*other);
        EXPECT_EQ(figures(other->train.run, "logprob_difference"), (std::vector<double>{0, 0}));
        EXPECT_EQ(figures(other->train.run, "prompt_tokens_read")[0],
                  figures(config.train.run, "prompt_tokens_read")[0]);
        expect_answers(other->train.run, config.train.run, layout.same_bits);
      }
  }
}

// Latents are whole on every tensor-parallel rank, and each rounds its own heads in FP8. Sampling and training then
// differ: by roundings, or by the error of FP8.
TEST_F(SamplingRuns, SampleFromOtherCachesInEveryLayout) {
  struct Other {
    const char* name;
    int64_t ranks;
    std::function<void(ParallelConfig&)> change;
  };
  const std::vector<Other> layouts = {
      {"stages", 2, [](ParallelConfig& p) { p.pipeline_model_parallel_size = 2; }},
      {"tensor, whole tokens", 2, [](ParallelConfig& p) { p.tensor_model_parallel_size = 2; }},
      {"tensor and tokens", 2, [](ParallelConfig& p) { p.tensor_model_parallel_size = 2, p.sequence_parallel = true; }},
      {"tensor and sharded parameters", 4, [](ParallelConfig& p) {
         p.tensor_model_parallel_size = 2, p.sequence_parallel = true;
         p.data_parallel_sharding_strategy = "optim_grads_params";
       }}};
  for (const CacheOptions& cache : {CacheOptions{"auto", "true"}, {"fp8_e4m3", "true"}, {"fp8_e4m3", "false"}}) {
    RunConfig config = rewarded(cat("one rank, ", cache.kv_cache_dtype, ' ', cache.cache_mla_latents));
    config.model.dtype = "float64";
    config.model.moe.num_experts = 0;
    testing::add_latent_attention(config.model,
                                  {.q_rank = 7, .kv_rank = 10, .head = 6, .rotated_head = 4, .value_head = 5});
    config.rollout.cache = cache;
    config.train.train_iters = 1;
    run(config);
    const std::vector<Rollout> expected = answers(config.train.run, 1);
    const double difference = figures(config.train.run, "logprob_difference")[0];
    EXPECT_LT(difference, cache.kv_cache_dtype == "auto" ? 1e-6 : 0.1);
    EXPECT_EQ(difference > 1e-6, cache.kv_cache_dtype != "auto");
    for (const auto& [name, ranks, change] : layouts) {
      SCOPED_TRACE(cat(name, ", ", config.train.run));
      RunConfig other = config;
      other.train.run = cat(name, ", ", config.train.run);
      other.parallel.ranks = ranks;
      change(other.parallel);
      run(other);
      const std::vector<Rollout> found = answers(other.train.run, 1);
      ASSERT_EQ(found.size(), expected.size());
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_EQ(found[i].completion, expected[i].completion) << "answer " << i;
        for (size_t t = 0; t < found[i].logprobs.size(); ++t)
          EXPECT_NEAR(found[i].logprobs[t], expected[i].logprobs[t], 1e-5) << "answer " << i;
      }
    }
  }
}

TEST_F(SamplingRuns, RefuseCachesThatChangeTheBitsOfTraining) {
  RunConfig config = sampled("bits");
  config.rollout.cache.kv_cache_dtype = "fp8_e4m3";
  config.parallel.batch_invariant_mode = true;
  EXPECT_NE(message_of<ConfigError>([&] { run(config); }).find("kv_cache_dtype = fp8_e4m3 changes the bits of tokens"),
            std::string::npos);
}

// Dynamic sampling draws the same prompts in the same order, whichever rank finds that rewards are equal.
TEST_F(SamplingRuns, ReplaceEqualGroupsInEveryLayout) {
  for (const int64_t experts : {0, 4}) {
    RunConfig config = of_layers(cat("one rank, experts ", experts), experts);
    config.rollout.num_generations = 2;
    config.rollout.max_num_gen_batches = 3;
    config.rollout.reward_command = "awk '{print length % 2}'";
    config.train.train_iters = 1;
    run(config);
    EXPECT_GT(figures(config.train.run, "num_gen_batches")[0], 1);
    for (const ModelLayout& layout : model_layouts())
      if (const auto other = laid_out(config, layout)) {
        SCOPED_TRACE(other->train.run);
        run(*other);
        expect_answers(other->train.run, config.train.run, layout.same_bits);
      }
  }
}

// Each samples its share, which a failure of the rewards leaves behind.
TEST_F(SamplingRuns, ShareThePromptsAmongContextRanks) {
  RunConfig config = rewarded("shared");
  config.rollout.reward_command = "exit 7";
  config.train.train_iters = 1;
  config.parallel.ranks = config.parallel.context_parallel_size = 2;
  EXPECT_NE(message_of<Error>([&] { run(config); }).find("it ended with code 7"), std::string::npos);
  std::vector<int64_t> rows;
  for (const int rank : {0, 1}) {
    std::istringstream lines(read_file(folder_ / "shared/rollouts" / cat("unfinished-", rank, ".jsonl")));
    std::string line;
    std::getline(lines, line);  // the identity
    int64_t own = 0;
    for (; std::getline(lines, line); ++own) rows.push_back(Rollout::of_line(line, "unfinished").row);
    EXPECT_EQ(own, config.train.global_batch_size / 2) << rank;
  }
  std::ranges::sort(rows);
  EXPECT_EQ(std::ranges::unique(rows).begin(), rows.end());
  // A single prompt is one rank's.
  config.train.run = "single";
  config.rollout.reward_command = "awk '{print length % 5}'";
  config.train.micro_batch_size = config.train.global_batch_size = config.rollout.num_generations;
  run(config);
  EXPECT_EQ(std::ssize(answers("single", 1)), config.rollout.num_generations);
}

TEST_F(SamplingRuns, ReadThePromptOfAGroupOnce) {
  RunConfig config = sampled("once");
  config.rollout.steps_per_generation = 2;
  config.train.train_iters = 2;
  run(config);
  int64_t tokens = 0;
  for (const int64_t step : {1, 2})
    for (const Rollout& answer : answers("once", step)) tokens += std::ssize(answer.prompt);
  EXPECT_EQ(
      figures("once", "prompt_tokens_read"),
      (std::vector<double>{static_cast<double>(tokens) / static_cast<double>(config.rollout.num_generations), 0}));
}

// An answer depends neither on the others nor on how many are sampled at a time.
TEST_F(SamplingRuns, GiveTheSameAnswersInAnyBatch) {
  RunConfig config = sampled("together");
  config.train.train_iters = 1;
  run(config);
  for (const int64_t at_once : {1, 3, 7}) {
    config.train.run = cat("at-once-", at_once);
    config.rollout.rollout_batch_size = at_once;
    run(config);
    EXPECT_EQ(rollouts(config.train.run, 1), rollouts("together", 1)) << at_once;
  }
}

TEST_F(SamplingRuns, StopAtStrings) {
  RunConfig config = sampled("unstopped");
  config.rollout.max_completion_length = 12;
  config.train.train_iters = 1;
  run(config);
  // A character that some answer has after others.
  const std::vector<Rollout> before = answers("unstopped", 1);
  std::string stop;
  for (const Rollout& answer : before)
    for (const char c : answer.text.completion.substr(1))
      if (stop.empty() && c > ' ' && answer.text.completion[0] != c) stop = c;
  ASSERT_EQ(stop.size(), 1u);
  config.train.run = "stopped";
  config.rollout.stop_strings = Json(std::vector<std::string>{"never found", stop}).dump();
  run(config);
  int64_t stopped = 0;
  const std::vector<Rollout> after = answers("stopped", 1);
  for (size_t i = 0; i < before.size(); ++i) {
    const size_t found = before[i].text.completion.find(stop);
    if (found == std::string::npos) {
      EXPECT_EQ(after[i].completion, before[i].completion);
      continue;
    }
    ++stopped;
    EXPECT_TRUE(after[i].ended);
    EXPECT_EQ(after[i].text.completion, before[i].text.completion.substr(0, found));
    EXPECT_LE(after[i].completion.size(), before[i].completion.size());
    EXPECT_TRUE(std::equal(after[i].completion.begin(), after[i].completion.end(), before[i].completion.begin()));
    EXPECT_EQ(after[i].logprobs.size(), after[i].completion.size());
  }
  EXPECT_GT(stopped, 0);
  config.model.vocab_size = 259;
  config.rollout.stop_strings = "[\"a\", 1]";
  EXPECT_NE(message_of<ConfigError>([&] { config.validate(); }).find("is no JSON array of texts"), std::string::npos);
}

// Answers that were sampled before a run was interrupted are not sampled again, if the weights are the same.
TEST_F(SamplingRuns, KeepTheAnswersOfAnInterruptedStep) {
  RunConfig config = sampled("interrupted");
  config.rollout.reward = "command";
  const std::string down = (folder_ / "down").string();
  config.rollout.reward_command = cat("test -e ", down, " && exit 7; awk '{print length % 3}'");
  config.train.train_iters = 1;
  run(config);
  std::ofstream(down) << "x";
  config.train.train_iters = 2;
  EXPECT_NE(message_of<Error>([&] { run(config); }).find("it ended with code 7"), std::string::npos);
  fs::remove(down);
  const std::string lines = read_file(unfinished("interrupted"));
  ASSERT_EQ(std::ranges::count(lines, '\n'), 1 + config.train.global_batch_size);
  // The first answer is marked, and the last one is torn.
  std::string marked = lines;
  const std::string key = "\"completion\":\"";
  marked.insert(marked.find(key) + key.size(), "marked: ");
  marked.resize(marked.size() - 10);
  write_file_atomically(unfinished("interrupted"), marked);
  run(config);
  std::vector<std::string> texts;
  for (const Rollout& answer : answers("interrupted", 2)) texts.push_back(answer.text.completion);
  EXPECT_EQ(texts.size(), static_cast<size_t>(config.train.global_batch_size));
  EXPECT_EQ(std::ranges::count_if(texts, [](const std::string& text) { return text.starts_with("marked: "); }), 1);
  EXPECT_FALSE(fs::exists(unfinished("interrupted")));
  // Those of another step are of no use.
  write_file_atomically(unfinished("interrupted"), marked);
  config.train.train_iters = 3;
  run(config);
  for (const Rollout& answer : answers("interrupted", 3)) EXPECT_FALSE(answer.text.completion.starts_with("marked: "));
}

// On a CPU routers choose the same experts in training, so that replaying them changes no bit; other routes change the
// log probabilities.
TEST_F(SamplingRuns, ReplayTheRoutesOfTheirAnswers) {
  RunConfig config = rewarded("routed");
  config.model.moe.num_experts = 4;
  config.train.train_iters = 2;
  config.parallel.ranks = 2;
  run(config);
  config.train.run = "replayed";
  config.rollout.router_replay = true;
  run(config);
  EXPECT_EQ(losses("replayed"), losses("routed"));
  EXPECT_EQ(figures("replayed", "logprob_difference"), (std::vector<double>{0, 0}));
  std::vector<Rollout> all = answers("replayed", 2);
  for (const Rollout& answer : all)
    EXPECT_EQ(answer.routes.size(), (answer.prompt.size() + answer.completion.size() - 1) * 2 *
                                        static_cast<size_t>(config.model.moe.moe_router_topk));
  const std::vector<int32_t> routes = routes_of(all, config);
  std::vector<int64_t> tokens(4);
  for (const int32_t expert : routes) ++tokens[static_cast<size_t>(expert)];
  EXPECT_TRUE(std::ranges::all_of(tokens, [](int64_t count) { return count > 0; }));
  all[1].routes.pop_back();
  EXPECT_NE(message_of<DataError>([&] { routes_of(all, config); }).find("has"), std::string::npos);
}

TEST_F(SamplingRuns, RefuseRoutesThatTheyDoNotRecord) {
  RunConfig config = sampled("refused");
  config.model.vocab_size = 259;
  config.rollout.router_replay = true;
  const auto expect_refusal = [&](const char* why) {
    const std::string message = message_of<ConfigError>([&] { config.validate(); });
    EXPECT_NE(message.find(why), std::string::npos) << message;
  };
  config.model.moe.num_experts = 0;
  expect_refusal("has no routes in a dense model");
  config.model.moe.num_experts = 4;
  config.train.replay_routes = "routes";
  expect_refusal("replays the routes of its answers");
  config.train.replay_routes.clear();
  config.parallel.ranks = config.parallel.pipeline_model_parallel_size = 2;
  expect_refusal("records routes on ranks that have all layers and tokens");
}

// Greedy answers to held-out prompts, whose mean reward every layout finds, and which change nothing that is trained.
TEST_F(SamplingRuns, EvaluateTheRewardOfHeldOutPrompts) {
  const auto evaluated = [&](const std::string& run) {
    std::vector<std::optional<double>> rewards;
    for (const EvalEvent& one : read_metrics(folder_ / run / "metrics.jsonl").evals) rewards.push_back(one.reward);
    return rewards;
  };
  for (const int64_t experts : testing::long_form() ? std::vector<int64_t>{0, 4} : std::vector<int64_t>{4}) {
    RunConfig config = of_layers(cat("plain, experts ", experts), experts);
    config.train.eval_iters = 1;
    config.train.eval_interval = 1;
    RunConfig turns = with_layers(conversing(cat("plain turns, experts ", experts)), experts);
    turns.train.eval_iters = turns.train.eval_interval = 1;
    for (const RunConfig& plain : {config, turns}) {
      run(plain);
      EXPECT_EQ(evaluated(plain.train.run), (std::vector<std::optional<double>>(2)));
      RunConfig one = plain;
      one.train.run = cat("evaluated, ", plain.train.run);
      one.rollout.rollout_eval_prompts = 5;
      run(one);
      const auto rewards = evaluated(one.train.run);
      ASSERT_EQ(rewards.size(), 2U);
      EXPECT_TRUE(rewards[0] && *rewards[0] >= 0 && *rewards[0] <= 4);
      EXPECT_EQ(losses(one.train.run), losses(plain.train.run));
      for (const int64_t step : {1, 2}) EXPECT_EQ(rollouts(one.train.run, step), rollouts(plain.train.run, step));
      EXPECT_NE(read_file(folder_ / one.train.run / "train.log").find(fmt::format(", eval reward {:.4f}", *rewards[1])),
                std::string::npos);
      for (const ModelLayout& layout : model_layouts())
        if (auto other = laid_out(one, layout); other && layout.ranks <= testing::steps_of(2, 8)) {
          SCOPED_TRACE(cat(one.train.run, ", ", layout.name));
          other->train.run += cat(", ", one.train.run);
          run(*other);
          EXPECT_EQ(evaluated(other->train.run)[0], rewards[0]);
        }
    }
  }
  RunConfig warm = of_layers("warm", 0);
  warm.train.eval_iters = warm.train.eval_interval = 1;
  warm.rollout.rollout_eval_prompts = 5;
  warm.rollout.reward = "length";
  RunConfig greedy = warm;
  greedy.train.run = "greedy";
  warm.rollout.rollout_eval_temperature = 1;
  warm.rollout.stop_strings = R"(["a","b","c","d","e","f","g","h","i","j","k","l","m","n","o","p","q","r","s","t"])";
  greedy.rollout.stop_strings = warm.rollout.stop_strings;
  run(warm);
  run(greedy);
  EXPECT_NE(evaluated("warm"), evaluated("greedy"));
  warm.train.eval_iters = 0;
  EXPECT_NE(message_of<ConfigError>([&] { run(warm); }).find("set held_out_fraction and eval_iters above 0"),
            std::string::npos);
}

// A signal stops the sampling of all ranks after the same token; the step is not done. The program that rewards the
// first answers sends it, so that it arrives before others replace them, or before the next turn.
TEST_F(SamplingRuns, StopBetweenTokensAndContinueToTheBit) {
  const auto with_signal = [&](RunConfig config) {
    const std::string sent = (folder_ / cat(config.train.run, ".sent")).string();
    config.rollout.reward_command =
        cat("mkdir '", sent, "' 2> /dev/null && kill -INT ", ::getpid(), "; ", config.rollout.reward_command);
    return config;
  };
  const auto expect_stop = [&](RunConfig whole) {
    whole.train.train_iters = 2;
    run(whole);
    RunConfig stopped = whole;
    stopped.train.run += ", stopped";
    stopped.train.train_iters = 1;
    run(stopped);
    stopped.train.train_iters = 2;
    const RunResult result = run(with_signal(stopped));
    EXPECT_EQ(result.end, RunEnd::interrupted);
    EXPECT_EQ(result.step, 1);
    EXPECT_FALSE(fs::exists(folder_ / stopped.train.run / "rollouts/step-00000002.jsonl"));
    EXPECT_NE(read_file(folder_ / stopped.train.run / "train.log")
                  .find("nothing to save, as step 1, which is saved, is the last one done"),
              std::string::npos);
    run(stopped);
    EXPECT_EQ(losses(stopped.train.run), losses(whole.train.run));
    for (const int64_t step : {1, 2}) EXPECT_EQ(rollouts(stopped.train.run, step), rollouts(whole.train.run, step));
  };
  for (const int64_t experts : testing::long_form() ? std::vector<int64_t>{0, 4} : std::vector<int64_t>{4}) {
    RunConfig replacing = of_layers(cat("replacing, experts ", experts), experts);
    replacing.rollout.num_generations = 2;
    replacing.rollout.max_num_gen_batches = 3;
    replacing.rollout.reward_command = "awk '{print length % 2}'";
    RunConfig turns = with_layers(conversing(cat("turns, experts ", experts)), experts);
    for (const RunConfig& config : {replacing, turns}) {
      expect_stop(config);
      for (const ModelLayout& layout : model_layouts())
        if (auto other = laid_out(config, layout); other && layout.ranks <= testing::steps_of(2, 8)) {
          SCOPED_TRACE(cat(config.train.run, ", ", layout.name));
          other->train.run += cat(", ", config.train.run);
          expect_stop(*other);
        }
    }
  }
}

TEST_F(SamplingRuns, ContinueToTheBitAfterTheyWereKilled) {
  RunConfig config = rewarded("whole");
  config.rollout.steps_per_generation = 2;
  config.rollout.rollout_batch_size = 5;
  config.rollout.max_completion_length = 12;
  config.train.train_iters = 4;
  config.train.save_interval = 1;
  run(config);
  const auto all = static_cast<double>(written("whole"));
  const Philox moments(1, Philox::stream_of("moments"));
  const int64_t kills = testing::steps_of(4, 50);
  for (int64_t i = 0; i < kills; ++i) {
    SCOPED_TRACE(i);
    fs::remove_all(folder_ / "killed");
    config.train.run = "killed";
    run_until_killed(config, static_cast<uint64_t>(all * moments.uniform(static_cast<uint64_t>(i))));
    run(config);
    EXPECT_EQ(losses("killed"), losses("whole"));
    EXPECT_EQ(figures("killed", "reward"), figures("whole", "reward"));
    for (int64_t step = 1; step <= 4; ++step) EXPECT_EQ(rollouts("killed", step), rollouts("whole", step));
  }
}

}  // namespace
}  // namespace witan
