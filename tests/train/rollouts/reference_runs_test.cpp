// Whole runs that compare with a frozen reference: its weights, as the run keeps them, and what is refused.
#include "train/rollouts/rollout_runs.h"

namespace witan {
namespace {

using test::message_of;

class ReferenceRuns : public testing::RolloutRuns {
 protected:
  ReferenceRuns() {
    std::ofstream pairs(folder_ / "pairs.jsonl");
    for (int i = 0; i < 60; ++i) {
      const char *good = i % 2 ? "odd" : "even", *bad = i % 2 ? "even" : "odd";
      pairs << R"({"prompt": [{"role": "user", "content": ")" << i % 10
            << R"("}], "chosen": [{"role": "assistant", "content": ")" << good
            << R"("}], "rejected": [{"role": "assistant", "content": ")" << bad << "\"}]}\n";
    }
  }

  RunConfig compared(const std::string& run) const {
    RunConfig config = sampled(run);
    config.objective.kl_loss_coef = 0.05;
    config.rollout.reward = "command";
    config.rollout.reward_command = "awk '{print length % 3}'";  // which differ within groups
    config.train.train_iters = 4;
    return config;
  }
  RunConfig preferring(const std::string& run) const {
    RunConfig config = supervised(run);
    config.data.data = (folder_ / "pairs.jsonl").string();
    config.data.preferences = true;
    config.data.packing = "greedy";
    config.data.seq_length = 128;
    config.objective.objective = "preference";
    config.train.micro_batch_size = 2;
    config.train.global_batch_size = 4;
    config.train.eval_iters = 2;
    config.train.train_iters = 4;
    return config;
  }
  static RunConfig with_adapters(RunConfig config) {
    config.model.lora_rank = 4;
    return config;
  }

  std::vector<EvalEvent> evaluations(const std::string& run) const {
    return read_metrics(folder_ / run / "metrics.jsonl").evals;
  }
  bool keeps_reference(const std::string& run) const { return fs::exists(folder_ / run / "reference"); }
};

// The divergence is relative to the weights with which a run starts, also after it resumes.
TEST_F(ReferenceRuns, DivergeFromTheirStartAndResumeToTheBit) {
  RunConfig config = supervised("start");
  config.train.train_iters = 10;
  run(config);
  config = compared("whole");
  config.train.init_from = (folder_ / "start").string();
  run(config);
  const std::vector<double> divergences = figures("whole", "kl_loss");
  ASSERT_EQ(divergences.size(), 4);
  EXPECT_EQ(divergences[0], 0);
  EXPECT_GT(divergences[3], 0);
  EXPECT_TRUE(keeps_reference("whole"));
  config.train.run = "resumed";
  for (const int64_t steps : {1, 3}) {
    config.train.train_iters = steps;
    run(config);
  }
  fs::remove_all(folder_ / "start");  // the run keeps what it needs
  config.train.train_iters = 4;
  run(config);
  EXPECT_EQ(losses("resumed"), losses("whole"));
  EXPECT_EQ(figures("resumed", "kl_loss"), divergences);
}

TEST_F(ReferenceRuns, OfAdaptersNeedNoWeights) {
  RunConfig config = with_adapters(compared("whole"));
  run(config);
  EXPECT_FALSE(keeps_reference("whole"));
  EXPECT_EQ(figures("whole", "kl_loss")[0], 0);
  EXPECT_GT(figures("whole", "kl_loss")[3], 0);
  // Answers are sampled with the adapters: their probabilities are those of training.
  for (const double difference : figures("whole", "logprob_difference")) EXPECT_LT(difference, 1e-5);
  config.train.run = "resumed";
  for (const int64_t steps : {2, 4}) {
    config.train.train_iters = steps;
    run(config);
  }
  EXPECT_EQ(losses("resumed"), losses("whole"));
}

TEST_F(ReferenceRuns, HaveTheSameBitsInEveryLayout) {
  for (const auto& [name, made] : {std::pair{"kl", compared("kl")}, {"dpo", preferring("dpo")}}) {
    RunConfig config = made;
    config.train.train_iters = 3;
    config.parallel.deterministic = true;
    run(config);
    struct Other {
      const char* run;
      ParallelConfig parallel;
      const char* strategy = "auto";
    };
    for (const auto& [layout, parallel, strategy] :
         {Other{"replicas", {2, 1, 1}}, {"experts", {2, 2, 1}}, {"fsdp", {2, 1, 1}, "optim_grads_params"}}) {
      SCOPED_TRACE(cat(name, ", ", layout));
      RunConfig other = config;
      other.train.run = cat(name, " ", layout);
      other.parallel = parallel;
      other.parallel.deterministic = true;
      other.parallel.data_parallel_sharding_strategy = strategy;
      run(other);
      EXPECT_EQ(losses(other.train.run), losses(name));
      for (const char* figure : {"kl_loss", "reward_margin"})
        EXPECT_EQ(figures(other.train.run, figure), figures(name, figure)) << figure;
    }
  }
}

// From pairs of a file to a model that prefers the right answers, with a validation that says so.
TEST_F(ReferenceRuns, LearnPreferences) {
  RunConfig config = preferring("learned");
  config.train.train_iters = 40;
  run(config);
  const std::vector<double> accuracies = figures("learned", "reward_accuracy"), losses = this->losses("learned");
  EXPECT_NEAR(losses.front(), 0.6931472, 1e-6);
  EXPECT_EQ(accuracies.front(), 0);
  EXPECT_EQ(accuracies.back(), 1);
  EXPECT_LT(losses.back(), 0.6);  // of log 2 without a preference
  const std::vector<EvalEvent> evaluated = evaluations("learned");
  ASSERT_FALSE(evaluated.empty());
  EXPECT_EQ(evaluated.back().figures.at("reward_accuracy"), 1);
  EXPECT_GT(evaluated.back().figures.at("reward_margin"), 0);
  EXPECT_LT(evaluated.back().loss, 0.6);
}

TEST_F(ReferenceRuns, OfPreferencesResumeToTheBit) {
  for (const bool adapters : {false, true}) {
    const std::string whole = adapters ? "adapters" : "whole", resumed = whole + " resumed";
    RunConfig config = adapters ? with_adapters(preferring(whole)) : preferring(whole);
    run(config);
    EXPECT_EQ(keeps_reference(whole), !adapters);
    config.train.run = resumed;
    for (const int64_t steps : {1, 4}) {
      config.train.train_iters = steps;
      run(config);
    }
    EXPECT_EQ(losses(resumed), losses(whole));
    EXPECT_EQ(figures(resumed, "reward_margin"), figures(whole, "reward_margin"));
  }
}

// The weights of another model are compared with, and stay when that model trains on.
TEST_F(ReferenceRuns, CompareWithAnotherRun) {
  RunConfig other = supervised("other");
  other.train.train_iters = 5;
  run(other);
  RunConfig config = compared("compared");
  config.objective.reference = "other";
  run(config);
  EXPECT_GT(figures("compared", "kl_loss")[0], 1e-3);
  config = with_adapters(compared("compared adapters"));
  config.objective.reference = "other";
  run(config);
  EXPECT_GT(figures("compared adapters", "kl_loss")[0], 1e-3);
}

TEST_F(ReferenceRuns, RefuseReferencesByName) {
  RunConfig other = supervised("other");
  other.model.num_layers = 1;
  other.train.train_iters = 1;
  run(other);
  RunConfig config = compared("refused");
  config.objective.reference = "other";
  std::string message = message_of<Error>([&] { run(config); });
  EXPECT_NE(message.find("reference = other: num_layers"), std::string::npos) << message;
  config.objective.reference = "nowhere";
  message = message_of<Error>([&] { run(config); });
  EXPECT_NE(message.find("reference = nowhere: there is neither"), std::string::npos) << message;

  config = compared("lost");
  config.train.train_iters = 1;
  run(config);
  fs::remove_all(folder_ / "lost/reference");
  config.train.train_iters = 2;
  message = message_of<CheckpointError>([&] { run(config); });
  EXPECT_NE(message.find("there are no weights of a reference"), std::string::npos) << message;
}

TEST_F(ReferenceRuns, RefuseShardsOfTheOtherKind) {
  RunConfig config = preferring("pairs");
  config.train.train_iters = 1;
  run(config);
  config = supervised("other kind");
  config.data.data.clear();
  config.data.data_path = (folder_ / "pairs/data/tokens").string();
  std::string message = message_of<ConfigError>([&] { run(config); });
  EXPECT_NE(message.find("preferences = false"), std::string::npos) << message;
  config = supervised("chats");
  config.train.train_iters = 1;
  run(config);
  config = preferring("other kind too");
  config.data.data.clear();
  config.data.data_path = (folder_ / "chats/data/tokens").string();
  message = message_of<ConfigError>([&] { run(config); });
  EXPECT_NE(message.find("preferences = true"), std::string::npos) << message;
}

}  // namespace
}  // namespace witan
