// The sampling of whole runs: what it reads, what ends answers, and what a run that is killed meanwhile keeps.
#include "witan/train/rollouts/sampling.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "support/comes_true.h"
#include "support/long_form.h"
#include "support/model_variants.h"
#include "train/rollouts/rollout_runs.h"
#include "witan/base/json.h"

namespace witan {
namespace {

using test::message_of;

struct ModelLayout;

class SamplingRuns : public testing::RolloutRuns {
 protected:
  std::vector<Rollout> answers(const std::string& run, int64_t step) const {
    std::vector<Rollout> all;
    std::istringstream lines(rollouts(run, step));
    for (std::string line; std::getline(lines, line);) all.push_back(Rollout::of_line(line, run));
    return all;
  }
  // Rewards differ within groups, so that answers are trained on, and do not depend on the rank that rewards them.
  RunConfig rewarded(const std::string& run) const {
    RunConfig config = sampled(run);
    config.rollout.reward = "command";
    config.rollout.reward_command = "awk '{print length % 5}'";
    return config;
  }
  RunConfig of_layers(const std::string& run, int64_t experts) const {
    RunConfig config = rewarded(run);
    config.model.num_layers = 4;
    config.model.moe.num_experts = experts;
    config.model.attention.qk_layernorm = true;
    config.parallel.deterministic = config.parallel.batch_invariant_mode = true;
    config.train.train_iters = 2;
    return config;
  }
  std::optional<RunConfig> laid_out(const RunConfig& config, const ModelLayout& layout) const;
  // The answers of the first step, in order, with what decides whether they are trained on.
  void expect_answers(const std::string& run, const std::string& expected, bool same_bits) const {
    if (same_bits) {
      EXPECT_EQ(rollouts(run, 1), rollouts(expected, 1));
      return;
    }
    const std::vector<Rollout> found = answers(run, 1), wanted = answers(expected, 1);
    ASSERT_EQ(found.size(), wanted.size());
    for (size_t i = 0; i < found.size(); ++i) {
      SCOPED_TRACE(cat("answer ", i));
      EXPECT_EQ(found[i].row, wanted[i].row);
      EXPECT_EQ(found[i].completion, wanted[i].completion);
      EXPECT_EQ(found[i].reward, wanted[i].reward);
      EXPECT_EQ(found[i].replaced, wanted[i].replaced);
      EXPECT_EQ(found[i].discarded, wanted[i].discarded);
      for (size_t t = 0; t < found[i].logprobs.size(); ++t)
        EXPECT_NEAR(found[i].logprobs[t], wanted[i].logprobs[t], 1e-5);
    }
  }
  fs::path unfinished(const std::string& run) const { return folder_ / run / "rollouts/unfinished-0.jsonl"; }

  // Trains in another process, which is killed once the answers that it has written have this many bytes.
  void run_until_killed(const RunConfig& config, uint64_t bytes) {
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        run(config);
      } catch (...) {
        ::_exit(1);
      }
      ::_exit(0);
    }
    ASSERT_GT(child, 0);
    int status = 0;
    bool ended = false;
    test::comes_true(
        [&] {
          ended = ::waitpid(child, &status, WNOHANG) == child;
          return ended || written(config.train.run) >= bytes;
        },
        600);
    if (ended) {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
      return;
    }
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
  }
  uint64_t written(const std::string& run) const {
    uint64_t bytes = 0;
    std::error_code gone;  // files come and go meanwhile
    for (fs::directory_iterator file(folder_ / run / "rollouts", gone), end; file != end; file.increment(gone)) {
      if (gone) break;
      const auto size = fs::file_size(file->path(), gone);
      if (!gone) bytes += size;
    }
    return bytes;
  }
};

// Every kind of layer, with the same weights in the sampler and in the trainer.
TEST_F(SamplingRuns, SampleWithTheLogProbabilitiesOfTraining) {
  const auto kinds = [] {
    std::vector<std::pair<std::string, std::function<void(ModelConfig&)>>> all;
    all.emplace_back("experts", [](ModelConfig&) {});
    all.emplace_back("latent attention", [](ModelConfig& model) {
      testing::add_latent_attention(model, {.q_rank = 7, .kv_rank = 10, .head = 6, .rotated_head = 4, .value_head = 5});
    });
    all.emplace_back("sparse attention", [](ModelConfig& model) {
      testing::add_latent_attention(model, {.q_rank = 7, .kv_rank = 10, .head = 6, .rotated_head = 4, .value_head = 5});
      testing::add_sparse_attention(model);
    });
    all.emplace_back("windows and sinks", [](ModelConfig& model) { testing::add_gpt_oss_features(model, "6,0"); });
    all.emplace_back("groups of experts", [](ModelConfig& model) { testing::add_grouped_router(model, "[0,1]", 12); });
    all.emplace_back("Gated DeltaNet", [](ModelConfig& model) { testing::add_linear_attention(model); });
    all.emplace_back("Mamba-2", [](ModelConfig& model) { testing::add_hybrid_layers(model); });
    all.emplace_back("compressed attention", [](ModelConfig& model) { testing::add_compressed_attention(model); });
    all.emplace_back("residual streams", [](ModelConfig& model) { testing::add_residual_streams(model); });
    all.emplace_back("short convolutions", [](ModelConfig& model) { testing::add_short_convolutions(model); });
    return all;
  }();
  for (const std::string dtype : {"float32", "bfloat16"})
    for (const auto& [name, change] : kinds) {
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

// Ranks that divide the model sample with the forward that they train with. Where none divides a sum, answers have the
// bits of one rank.
struct ModelLayout {
  const char* name;
  int64_t ranks;
  std::function<void(ParallelConfig&)> change;
  bool same_bits = true, of_experts = false;
};

std::vector<ModelLayout> model_layouts() {
  return {
      {"stages", 2, [](ParallelConfig& p) { p.pipeline_model_parallel_size = 2; }},
      {"interleaved", 2,
       [](ParallelConfig& p) { p.pipeline_model_parallel_size = p.num_virtual_stages_per_pipeline_rank = 2; }},
      {"context", 2, [](ParallelConfig& p) { p.context_parallel_size = 2, p.cp_comm_type = "a2a"; }},
      {"context, stages, data", 8,
       [](ParallelConfig& p) { p.context_parallel_size = p.pipeline_model_parallel_size = 2, p.cp_comm_type = "a2a"; }},
      {"context and experts", 2,
       [](ParallelConfig& p) { p.context_parallel_size = p.expert_model_parallel_size = 2, p.cp_comm_type = "a2a"; },
       true, true},
      {"tensor, whole tokens", 2, [](ParallelConfig& p) { p.tensor_model_parallel_size = 2; }, false},
      {"tensor and tokens", 2, [](ParallelConfig& p) { p.tensor_model_parallel_size = 2, p.sequence_parallel = true; },
       false},
      {"tensor, context, data", 8,
       [](ParallelConfig& p) {
         p.tensor_model_parallel_size = p.context_parallel_size = 2, p.cp_comm_type = "a2a";
         p.sequence_parallel = true;
       },
       false},
      {"tensor, stages, data", 8,
       [](ParallelConfig& p) {
         p.tensor_model_parallel_size = p.pipeline_model_parallel_size = 2, p.sequence_parallel = true;
       },
       false},
      {"tensor and experts", 4,
       [](ParallelConfig& p) {
         p.tensor_model_parallel_size = p.expert_model_parallel_size = 2, p.sequence_parallel = true;
       },
       false, true},
      {"tensor of experts", 2, [](ParallelConfig& p) { p.expert_tensor_parallel_size = 2; }, false, true},
      {"tensor and sharded parameters", 4,
       [](ParallelConfig& p) {
         p.tensor_model_parallel_size = 2, p.sequence_parallel = true;
         p.data_parallel_sharding_strategy = "optim_grads_params";
       },
       false},
  };
}

// Nothing if the model has no such layout.
std::optional<RunConfig> SamplingRuns::laid_out(const RunConfig& config, const ModelLayout& layout) const {
  const bool has_experts = config.model.moe.num_experts > 0;
  RunConfig other = config;
  other.train.run = cat(layout.name, ", experts ", config.model.moe.num_experts);
  other.parallel.ranks = layout.ranks;
  layout.change(other.parallel);
  const bool whole_tokens = other.parallel.tensor_model_parallel_size > 1 && !other.parallel.sequence_parallel;
  if (has_experts ? whole_tokens : layout.of_experts) return std::nullopt;
  return other;
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
