// Argument lists of public Megatron-LM runs (recipes/megatron) have the same meaning here.
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/compat/megatron_support.h"
#include "support/message_of.h"

namespace witan::test {
namespace {

// The settings shared by all runs except Mixtral: their lists and Megatron-LM's defaults, written by hand.
RunConfig expected(const std::string& name) {
  RunConfig config;
  config.train.run = name;
  config.train.train_iters = 40000;
  config.train.micro_batch_size = 8;
  config.train.global_batch_size = 64;
  config.train.eval_interval = 1000;
  config.train.eval_iters = 10;
  config.train.log_interval = 20;
  config.parallel.sequence_parallel = true;
  config.log.log_throughput = config.log.log_params_norm = true;
  config.log.log_num_zeros_in_grad = config.log.log_progress = true;
  config.model.num_layers = 24;
  config.model.hidden_size = 512;
  config.model.vocab_size = 128256;
  config.model.untie_embeddings_and_output_weights = true;
  config.model.make_vocab_size_divisible_by = 128;
  config.model.dtype = "bfloat16";
  config.model.attention.num_attention_heads = 4;
  config.model.attention.num_query_groups = 1;
  config.model.attention.max_position_embeddings = 2048;
  config.model.attention.rotary_base = 100000;
  config.model.mlp.ffn_hidden_size = 1792;
  config.model.moe.num_experts = 0;
  config.model.moe.moe_aux_loss_coeff = "0";
  config.model.moe.moe_global_load = "so_far";
  config.data.seq_length = 2048;
  config.optimizer.lr = 6e-4;
  config.optimizer.min_lr = 6e-5;
  config.optimizer.lr_schedule_counter = "updates";
  config.optimizer.lr_warmup_iters = 1000;
  config.optimizer.lr_decay_iters = 38000;
  config.optimizer.adam_beta2 = 0.999;
  config.parallel.expert_model_parallel_size = 1;
  config.parallel.use_distributed_optimizer = true;
  return config;
}

RunConfig expected_moe(const std::string& name, int64_t divided) {
  RunConfig config = expected(name);
  config.model.moe.num_experts = 64;
  config.model.moe.moe_router_topk = 1;
  config.model.moe.moe_router_pre_softmax = true;
  config.model.moe.moe_aux_loss_coeff = "0.01";
  config.parallel.expert_model_parallel_size = divided;
  return config;
}

RunConfig expected_mixtral() {
  RunConfig config;
  config.train.run = "mixtral";
  config.train.train_iters = 500000;
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = 128;
  config.train.eval_interval = 1000;
  config.train.eval_iters = 10;
  config.train.log_interval = 1;
  config.train.save_interval = 10000;
  config.load.no_load_optim = config.load.no_load_rng = true;
  config.model.num_layers = 32;
  config.model.hidden_size = 4096;
  config.model.vocab_size = 32000;
  config.model.untie_embeddings_and_output_weights = true;
  config.model.make_vocab_size_divisible_by = 128;
  config.model.init_method_std = 0.01;
  config.model.dtype = "bfloat16";
  config.model.attention.num_attention_heads = 32;
  config.model.attention.num_query_groups = 8;
  config.model.attention.max_position_embeddings = 32768;
  config.model.mlp.ffn_hidden_size = 14336;
  config.model.moe.num_experts = 8;
  config.model.moe.moe_global_load = "so_far";
  config.data.seq_length = 2048;
  config.optimizer.lr = 1e-4;
  config.optimizer.min_lr = 1e-5;
  config.optimizer.lr_schedule_counter = "updates";
  config.optimizer.lr_warmup_iters = 500;
  config.optimizer.lr_decay_iters = 320000;
  config.optimizer.adam_beta2 = 0.999;
  config.parallel.expert_model_parallel_size = 4;
  config.parallel.use_distributed_optimizer = config.parallel.sequence_parallel = true;
  return config;
}

TEST(MegatronLists, MeanTheSameAsInMegatronLm) {
  EXPECT_EQ(toml_of(read_words({list("dense")}).config), toml_of(expected("dense")));
  EXPECT_EQ(toml_of(read_words({list("dmoe_ep4")}).config), toml_of(expected_moe("dmoe_ep4", 4)));
  RunConfig dmoe_ep8 = expected_moe("dmoe_ep8", 8);
  dmoe_ep8.train.micro_batch_size = 4;
  EXPECT_EQ(toml_of(read_words({list("dmoe_ep8")}).config), toml_of(dmoe_ep8));
  RunConfig moe_ep4 = expected_moe("moe_ep4", 4);
  moe_ep4.model.moe.moe_expert_capacity_factor = 1;
  moe_ep4.model.moe.moe_pad_expert_input_to_capacity = true;
  EXPECT_EQ(toml_of(read_words({list("moe_ep4")}).config), toml_of(moe_ep4));
  EXPECT_EQ(toml_of(read_words({list("mixtral"), "--tensor-model-parallel-size", "1"}).config),
            toml_of(expected_mixtral()));
}

TEST(MegatronLists, MeanTheSameWrittenOutAsFlags) {
  for (const char* name : {"dense", "dmoe_ep4", "dmoe_ep8", "moe_ep4"}) {
    std::vector<std::string> files, words;
    for (const cli::Argument& word : cli::expand_response_files({list(name)}, files)) words.push_back(word.text);
    words.insert(words.end(), {"--run", name});
    EXPECT_EQ(toml_of(read_words(words).config), toml_of(read_words({list(name)}).config)) << name;
  }
}

TEST(MegatronLists, ReportHowFlagsAreTaken) {
  const std::string said = read_words({list("dense")}).said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 2) << said;
  EXPECT_TRUE(contains(said, "Megatron-LM's defaults apply (@")) << said;
  EXPECT_TRUE(contains(said, "adam_beta2 = 0.999")) << said;
  EXPECT_TRUE(contains(said, "accepted without effect: ")) << said;
  EXPECT_TRUE(contains(said, "--overlap-grad-reduce, --overlap-param-gather (an overlap)")) << said;
}

std::vector<std::string> plan_words(const TempFolder& own, const std::string& name,
                                    const std::vector<std::string>& more) {
  std::vector<std::string> words = {"plan", list(name), "--runs-folder", own.path().string()};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(MegatronLists, PlansHaveTheKnownParameterCountsAndMemory) {
  TempFolder own;
  const Said dense = witan(plan_words(own, "dense", {"--ranks", "8"}));
  EXPECT_TRUE(contains(dense.out, "213,148,160")) << dense.out << dense.err;
  EXPECT_TRUE(contains(dense.out, "1524.73 MB")) << dense.out;
  for (const char* name : {"dmoe_ep4", "dmoe_ep8", "moe_ep4"}) {
    const Said moe = witan(plan_words(own, name, {"--gpus", "8"}));
    EXPECT_TRUE(contains(moe.out, "4,375,732,736")) << name << moe.err;
  }
  const Said four = witan(plan_words(own, "dmoe_ep4", {"--gpus", "8"}));
  EXPECT_TRUE(contains(four.out, "31292.23 MB") && contains(four.out, "13153.68 MB")) << four.out;
}

// At the original sizes. A rank holds what Megatron-LM's formula (docs/parity.md, MB of 2^20 bytes) gives for a
// bfloat16 parameter: 2 bytes for the value, 4 for the gradient, and for the optimizer a share of 12 bytes, or of 10
// where the float32 master does not repeat the bits of the value. Shares end at chunks.
TEST(MegatronLists, PlansOfTheirWorldsMatchTheFormula) {
  TempFolder own;
  struct World {
    const char* name;
    int ranks;
    double published;  // MB of weights and optimizer; 0: unknown
    double others, experts, divided;
  };
  constexpr double kDense = 213148160, kMoe = 4375732736;
  constexpr double kExperts = 24.0 * 64 * 3 * 512 * 1792;
  constexpr double kMixtralExperts = 32.0 * 8 * 3 * 4096 * 14336;
  constexpr double kMixtral = 46702792704 - kMixtralExperts;
  for (const World& world : {World{"dense", 8, 1524.55, kDense, 0, 1},
                             {"moe_ep4", 8, 13153.68, kMoe - kExperts, kExperts, 4},
                             {"dmoe_ep4", 8, 13153.68, kMoe - kExperts, kExperts, 4},
                             {"dmoe_ep8", 8, 10129.68, kMoe - kExperts, kExperts, 8},
                             {"mixtral", 16, 0, kMixtral / 4, kMixtralExperts / 4, 4}}) {
    SCOPED_TRACE(world.name);
    const double data = world.ranks / (world.published > 0 ? 1 : 4), replicas = data / world.divided;
    const Said said = witan(plan_words(own, world.name, {"--gpus", std::to_string(world.ranks), "--json"}));
    ASSERT_EQ(said.code, 0) << said.err;
    const auto json = nlohmann::json::parse(said.out);
    ASSERT_EQ(json["ranks"].size(), static_cast<size_t>(world.ranks));
    double sum = 0;
    for (const auto& rank : json["ranks"])
      for (const char* tag : {"weights", "gradients", "optimizer"})
        sum += rank["tags"][tag].get<double>() / world.ranks;
    const auto bytes = [&](double optimizer) {
      return world.others * (6 + optimizer / data) + world.experts / world.divided * (6 + optimizer / replicas);
    };
    EXPECT_NEAR(sum, bytes(10), 0.002 * bytes(10));
    if (world.published > 0) {
      EXPECT_NEAR(bytes(12) / (1 << 20), world.published, 0.01);
    }
    EXPECT_GT(json["ranks"][0]["tags"]["activations"].get<double>(), 0);
    EXPECT_FALSE(json["ranks"][0]["sent"].empty());
  }
}

// Four tensor-parallel ranks also divide each expert, so that four expert-parallel ranks require sixteen ranks.
TEST(MegatronLists, TensorParallelRanksAreNotAvailableForExperts) {
  for (const char* command : {"plan", "train"})
    expect_refusal(
        {command, list("mixtral"), "--ranks", "4"}, 3,
        {"expert_model_parallel_size = 4: more ranks than the 1 that expert_tensor_parallel_size = 4 leaves of 4"});
}

TEST(MegatronLists, ExpertParallelismNeedsEnoughRanks) {
  expect_refusal({"plan", list("dmoe_ep4"), "--ranks", "2"}, 3,
                 {"expert_model_parallel_size = 4: more ranks than the 2 there are"});
}

struct Reduced {
  const char* name;
  int ranks;
};

// Runs reduced in depth and width by flags after the list, on the original number of ranks.
class ReducedTest : public ::testing::TestWithParam<Reduced> {
 protected:
  std::vector<std::string> words(const std::string& runs, const std::vector<std::string>& more) const {
    std::vector<std::string> all = {"train", list(GetParam().name), "--data", own_ / "text"};
    const std::vector<std::string> flags = {"--runs-folder",
                                            own_ / runs,
                                            "--num-layers",
                                            "2",
                                            "--hidden-size",
                                            "16",
                                            "--ffn-hidden-size",
                                            "16",
                                            "--num-attention-heads",
                                            "4",
                                            "--seq-length",
                                            "16",
                                            "--vocab-size",
                                            "1000",
                                            "--train-iters",
                                            "2",
                                            "--eval-iters",
                                            "1",
                                            "--sample-tokens",
                                            "0",
                                            "--micro-batch-size",
                                            "1",
                                            "--global-batch-size",
                                            "8",
                                            "--lr-decay-iters",
                                            "3",
                                            "--lr-warmup-iters",
                                            "1",
                                            "--tokenizer-vocab-size",
                                            "300",
                                            "--held-out-fraction",
                                            "0.05",
                                            "--threads",
                                            "1",
                                            "--log-interval",
                                            "1"};
    all.insert(all.end(), flags.begin(), flags.end());
    if (std::string(GetParam().name) == "mixtral") all.insert(all.end(), {"--num-query-groups", "4"});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  void SetUp() override {
    for (int i = 0; i < 20; ++i) write_text(own_ / ("text/" + std::to_string(i) + ".txt"), some_text(40));
  }
  std::string read_run(const std::string& runs, const char* file) const {
    return read_text(fs::path(own_ / runs) / GetParam().name / file);
  }
  std::vector<double> losses(const std::string& runs) const {
    std::vector<double> all;
    std::istringstream lines(read_run(runs, "metrics.jsonl"));
    for (std::string line; std::getline(lines, line);)
      if (const auto event = nlohmann::json::parse(line); event["kind"] == "step") all.push_back(event["loss"]);
    return all;
  }

  TempFolder own_;
};

TEST_P(ReducedTest, Trains) {
  const Said said = witan(words("runs", {"--ranks", std::to_string(GetParam().ranks)}));
  EXPECT_EQ(said.code, 0) << said.err;
  const std::string config = read_run("runs", "config.toml");
  EXPECT_TRUE(contains(config, "num_layers = 2\n") && contains(config, "vocab_size = 1000\n")) << config;
  EXPECT_EQ(losses("runs").size(), 2u) << said.err;

  const Said more = witan({"train", list(GetParam().name), "--runs-folder", own_ / "runs"});
  EXPECT_EQ(more.code, 3) << "the list alone describes a different model: " << more.out;
  EXPECT_TRUE(contains(more.err, "(was 2)")) << more.err;
}

// In float64 the layout of the list trains like one rank.
TEST_P(ReducedTest, TrainsLikeOneRank) {
  const std::vector<std::string> alone = {
      "--dtype", "float64", "--ranks", "1", "--expert-model-parallel-size", "1", "--tensor-model-parallel-size", "1"};
  const Said many = witan(words("many", {"--dtype", "float64", "--ranks", std::to_string(GetParam().ranks)}));
  const Said one = witan(words("one", alone));
  ASSERT_TRUE(many.code == 0 && one.code == 0) << many.err << one.err;
  const std::vector<double> a = losses("many"), b = losses("one");
  ASSERT_EQ(a.size(), 2u);
  ASSERT_EQ(b.size(), 2u);
  for (size_t step = 0; step < 2; ++step) EXPECT_NEAR(a[step], b[step], 1e-9 * b[step]) << "step " << step;
}

INSTANTIATE_TEST_SUITE_P(Lists, ReducedTest,
                         ::testing::Values(Reduced{"dense", 8}, Reduced{"dmoe_ep4", 8}, Reduced{"dmoe_ep8", 8},
                                           Reduced{"moe_ep4", 8}, Reduced{"mixtral", 16}),
                         [](const auto& list) { return std::string(list.param.name); });

}  // namespace
}  // namespace witan::test
