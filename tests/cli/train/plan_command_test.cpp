// witan plan for worlds other than this machine.
#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/cli_support.h"
#include "witan/tensor/cuda.h"

namespace witan::test {
namespace {

class PlanCommandTest : public ::testing::Test {
 protected:
  std::vector<std::string> words(const std::vector<std::string>& more) const {
    std::vector<std::string> all = {"plan",
                                    "--runs-folder",
                                    own_.path().string(),
                                    "--num-layers",
                                    "4",
                                    "--hidden-size",
                                    "64",
                                    "--vocab-size",
                                    "1024",
                                    "--num-experts",
                                    "8",
                                    "--seq-length",
                                    "64",
                                    "--tokenizer-vocab-size",
                                    "300",
                                    "--num-query-groups",
                                    "4"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Said plan(const std::vector<std::string>& more) const { return witan(words(more)); }
  void refuses(const std::vector<std::string>& more, int code, const std::vector<std::string>& pieces) const {
    expect_refusal(words(more), code, pieces);
  }

  TempFolder own_;
};

// Reported for flags and for files with values other than the default; presets and defaults are not requests.
TEST_F(PlanCommandTest, ReportsKeysWithoutEffect) {
  write_text(own_ / "mine.toml", "kv_lora_rank = 64\nq_lora_rank = 0\n");
  Said said = plan({"--config", own_ / "mine.toml", "--loss-scale", "1024", "--hysteresis", "2", "--print-layout"});
  ASSERT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(
      contains(said.err,
               "warning: kv_lora_rank = 64 has no effect: it needs multi_latent_attention = true; here "
               "multi_latent_attention = false\n"
               "warning: loss_scale = 1024.0 and hysteresis = 2 have no effect: they need dtype = float16; here "
               "dtype = float32\n"))
      << said.err;
  EXPECT_FALSE(contains(said.err, "q_lora_rank"));
  said = plan({"--dtype", "float16", "--loss-scale", "1024", "--print-layout"});
  EXPECT_FALSE(contains(said.err, "no effect")) << said.err;
  said = witan({"plan", "--preset", "gpt2-124m", "--tokenizer-vocab-size", "300", "--ranks", "1", "--runs-folder",
                own_.path(), "--print-layout"});
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_FALSE(contains(said.err, "no effect")) << said.err;
}

// A plan for the CPU that was not requested explains how to plan for GPUs, unless this machine has one.
TEST_F(PlanCommandTest, SuggestsGpuOptionsOnMachinesWithoutGpus) {
  const std::string hint = "this machine has no usable GPU: give --gpus N --gpu NAME";
  EXPECT_EQ(contains(plan({"--print-layout"}).err, hint), cuda::devices() == 0);
  for (const std::vector<std::string>& said :
       {std::vector<std::string>{"--device", "cpu"}, {"--gpus", "2", "--gpu", "h100"}, {"--world-size", "2"}})
    EXPECT_FALSE(contains(plan(said).err, hint)) << said[0];
}

// A few ranks represent all; each rank's memory is its own.
TEST_F(PlanCommandTest, PlansAThousandRanksByAFew) {
  const Said said = plan({"--world-size", "1024", "--pipeline-model-parallel-size", "4", "--tensor-model-parallel-size",
                          "4", "--sequence-parallel", "true", "--global-batch-size", "256", "--micro-batch-size", "1",
                          "--use-distributed-optimizer", "true", "--json", "--memory", "1GB"});
  ASSERT_EQ(said.code, 0) << said.err;
  const auto json = nlohmann::json::parse(said.out);
  EXPECT_LE(json["ranks"].size(), 32u);
  size_t ranks = 0;
  int64_t most = 0;
  for (const auto& one : json["ranks"]) {
    ranks += one["ranks"].size();
    most = std::max(most, one["arena_bytes"].get<int64_t>());
  }
  EXPECT_EQ(ranks, 1024u);
  EXPECT_EQ(json["needed_bytes"], most + json["reserve_bytes"].get<int64_t>()) << "of a rank, not of the world";
  EXPECT_EQ(json["fits"], true);
  EXPECT_FALSE(json.contains("step_seconds")) << "the machines are unknown";
}

TEST_F(PlanCommandTest, ReportsDiskSpaceOfCheckpoints) {
  const std::vector<std::string> ranks = {"--world-size", "2", "--global-batch-size", "8"};
  const auto json = nlohmann::json::parse(plan({"--world-size", "2", "--global-batch-size", "8", "--json"}).out);
  const auto bytes = json["checkpoint_bytes"].get<double>();
  const auto values = 4 * json["parameters"]["exact"].get<double>();  // float32, with Adam's two moments
  EXPECT_GT(bytes, 3 * values);
  EXPECT_LT(bytes, 3 * values + (1 << 20));
  const auto anomaly = json["anomaly_bytes"].get<double>();
  EXPECT_GT(anomaly, values);
  EXPECT_LT(anomaly, values + (1 << 20));
  EXPECT_EQ(json["disk_bytes"].get<double>(), 3 * bytes + 2 * anomaly)
      << "two are kept while the next is written, and two anomalies";
  EXPECT_TRUE(contains(plan(ranks).out, "\nDisk\n  a checkpoint ")) << plan(ranks).out;
  EXPECT_TRUE(contains(plan(ranks).out, "of which 2 are kept at most; all together ")) << plan(ranks).out;
}

// This also holds if this machine has other GPUs or none.
TEST_F(PlanCommandTest, Fp8NeedsAGpuThatSupportsIt) {
  const std::vector<std::string> fp8 = {
      "--gpus", "8",    "--global-batch-size", "64", "--micro-batch-size", "1", "--dtype", "bfloat16", "--fp8-format",
      "e4m3",   "--gpu"};
  const auto on = [&](const char* gpu) {
    std::vector<std::string> all = fp8;
    all.push_back(gpu);
    return all;
  };
  refuses(on("a100"), 3, {"fp8_format = e4m3", "made for h100 and h200, not for a100", "set fp8_format = \"none\""});
  const Said said = plan(on("h200"));
  EXPECT_EQ(said.code, 0) << said.err;
}

TEST_F(PlanCommandTest, GpusFromDataSheetsHaveMemoryAndTime) {
  const std::vector<std::string> layout = {"--expert-model-parallel-size",
                                           "8",
                                           "--global-batch-size",
                                           "64",
                                           "--micro-batch-size",
                                           "1",
                                           "--dtype",
                                           "bfloat16"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), layout.begin(), layout.end());
    return plan(more);
  };
  const Said page = with({"--gpus", "64", "--gpu", "h100"});
  ASSERT_EQ(page.code, 0) << page.err;
  for (const char* piece : {"  0-63 ", "of 74.5 GiB usable", "are written directly into the memory", "Predicted time",
                            "h100's data sheet", "hosts of 8 GPUs, network 50 GB/s a GPU"})
    EXPECT_TRUE(contains(page.out, piece)) << piece << " is missing from\n" << page.out;
  const auto seconds = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = {"--gpus", "64", "--gpu", "h100", "--json"};
    all.insert(all.end(), more.begin(), more.end());
    return nlohmann::json::parse(with(all).out)["step_seconds"].get<double>();
  };
  const double slow = seconds({"--network-bandwidth", "5"});
  EXPECT_GT(slow, seconds({}));
  EXPECT_LT(seconds({"--network-bandwidth", "5", "--gpus-per-host", "64"}), slow) << "links instead of the network";
  EXPECT_GT(seconds({"--link-bandwidth", "5"}), seconds({}));
  const Said near = with({"--gpus", "64", "--processes"});
  EXPECT_TRUE(contains(near.out, "are written directly into the memory")) << "processes of one host\n" << near.out;
  const Said apart = with({"--gpus", "64", "--gpus-per-host", "4", "--processes"});
  EXPECT_TRUE(contains(apart.out, "tokens for experts are exchanged with NCCL")) << apart.out;
}

TEST_F(PlanCommandTest, FollowsTheEnvironmentsPeerMemory) {
  const std::vector<std::string> two = {"--gpus", "2", "--expert-model-parallel-size", "2"};
  EXPECT_TRUE(contains(plan(two).out, "tokens for experts are written directly into the memory"));
  ::setenv("WITAN_COMM_PEERS", "0", 1);
  const Said forbidden = plan(two);
  ::setenv("WITAN_COMM_PEERS", "host", 1);
  const Said by_host = plan({"--device", "cuda", "--world-size", "2", "--expert-model-parallel-size", "2"});
  ::setenv("WITAN_COMM_PEERS", "off", 1);
  refuses(two, 3, {"environment: WITAN_COMM_PEERS = \"off\" must be 0, 1 or host"});
  ::unsetenv("WITAN_COMM_PEERS");
  EXPECT_TRUE(contains(forbidden.out, "tokens for experts are exchanged with NCCL, as WITAN_COMM_PEERS=0 asks for"))
      << forbidden.out;
  EXPECT_TRUE(contains(by_host.out, "tokens for experts go through memory of the host")) << by_host.out;
  EXPECT_TRUE(contains(by_host.out, "captured as one CUDA graph")) << by_host.out;
}

TEST_F(PlanCommandTest, RefusesContradictions) {
  refuses({"--gpus", "8", "--world-size", "8"}, 2, {"--gpus", "--world-size"});
  refuses({"--gpu", "h100"}, 2, {"--gpus"});
  refuses({"--gpus", "8", "--gpu", "h10"}, 3, {"--gpu h10 is not known (did you mean h100?); there are"});
  refuses({"--gpus", "8", "--ranks", "4"}, 3, {"--gpus 8 and ranks = 4 differ: remove one of them"});
  refuses({"--world-size", "8", "--mesh", "replicate=4"}, 3,
          {"--mesh replicate=4 is 4 ranks, of --world-size 8: make replicate or shard 2 times as large"});
  refuses({"--gpus", "64", "--mesh", "tensor=2,expert=8"}, 3,
          {"--mesh tensor=2,expert=8 is 2 ranks, of --gpus 64: add replicate=32 or shard=32"});
  refuses({"--gpus", "8", "--mesh", "tensor=3"}, 3,
          {"--mesh tensor=3 is 3 ranks, of --gpus 8: its sizes, but those of expert and expert_tensor, must multiply "
           "to 8"});
  refuses({"--gpus", "8", "--device", "cpu"}, 3, {"--gpus 8 plans for GPUs, but device = cpu is set"});
  refuses({"--gpus", "4", "--gpu", "h100", "--dtype", "float64", "--micro-batch-size", "2"}, 3,
          {"the data sheet has no speed for dtype = float64"});
}

TEST_F(PlanCommandTest, SuggestsDivisibleSizes) {
  refuses({"--mesh", "tensor=3", "--ffn-hidden-size", "768"}, 3,
          {"num_attention_heads = 4 is not divisible by tensor_model_parallel_size = 3; set "
           "tensor_model_parallel_size to 2 or 4, the nearest that work, or change num_attention_heads"});
  refuses({"--expert-model-parallel-size", "3"}, 3,
          {"num_experts = 8 is not divisible by expert_model_parallel_size = 3; set expert_model_parallel_size to "
           "2 or 4, the nearest that work"});
  refuses({"--tp", "2"}, 2, {"unknown flag --tp (did you mean --tensor-model-parallel-size?)"});
  refuses({"--data-parallel-sharding-strategy", "fsdp"}, 3, {"(did you mean optim_grads_params?)"});
  refuses({"--data-parallel-sharding-strategy", "zero2"}, 3, {"(did you mean optim_grads?)"});
}

// The tokenizer is not trained yet.
TEST_F(PlanCommandTest, ReportsAnAssumedVocabulary) {
  const std::vector<std::string> small = {
      "plan", "--runs-folder", own_.path().string(), "--num-layers", "1", "--hidden-size", "32", "--num-experts", "2"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), small.begin(), small.end());
    return witan(more).out;
  };
  const std::string words = "vocabulary: 4,096 tokens are assumed, since there is no tokenizer yet";
  EXPECT_TRUE(contains(with({}), words));
  EXPECT_TRUE(contains(with({"--print-layout"}), words));
  EXPECT_TRUE(contains(with({"--search", "--gpus", "2", "--dtype", "bfloat16"}), words));
  EXPECT_EQ(nlohmann::json::parse(with({"--json"}))["assumed_vocabulary"], 4096);
  EXPECT_EQ(nlohmann::json::parse(with({"--json", "--print-layout"}))["assumed_vocabulary"], 4096);
  EXPECT_EQ(nlohmann::json::parse(with({"--json", "--tokenizer-vocab-size", "300"}))["assumed_vocabulary"], 300);
  EXPECT_FALSE(contains(with({"--vocab-size", "5000"}), "assumed"));
  EXPECT_FALSE(nlohmann::json::parse(with({"--vocab-size", "5000", "--json"})).contains("assumed_vocabulary"));
}

TEST_F(PlanCommandTest, PrintsALayoutAsJson) {
  const Said said = plan({"--ranks", "4", "--expert-model-parallel-size", "2", "--use-distributed-optimizer",
                          "--micro-batch-size", "1", "--print-layout", "--json"});
  ASSERT_EQ(said.code, 0) << said.err;
  const auto json = nlohmann::json::parse(said.out);
  EXPECT_EQ(json["mesh"]["shard"], 4);
  EXPECT_EQ(json["mesh_of_experts"]["expert"], 2);
}

// A plan that does not fit ends with one that would, on the same number of ranks.
TEST_F(PlanCommandTest, SuggestsWhatFitsOnTheSameNumberOfGpus) {
  const Said said = plan({"--gpus", "1024", "--global-batch-size", "1024", "--micro-batch-size", "1",
                          "--ffn-hidden-size", "65536", "--expert-model-parallel-size", "1", "--memory", "2.6GB"});
  EXPECT_EQ(said.code, 8) << said.out;
  EXPECT_TRUE(contains(said.err, "The same training fits with ")) << said.err;
  EXPECT_TRUE(contains(said.err, "--expert-model-parallel-size 8")) << said.err;
  EXPECT_FALSE(contains(said.err, "--ranks")) << said.err;
}

// A search is quick and reports what it dropped, and its first layout can be planned with the printed flags.
TEST_F(PlanCommandTest, SearchesLayoutsOfManyGpus) {
  const std::vector<std::string> model = {
      "--global-batch-size", "64", "--micro-batch-size", "1", "--dtype", "bfloat16"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), model.begin(), model.end());
    return plan(more);
  };
  const Said page = with({"--search", "--gpus", "64", "--memory", "80GB"});
  ASSERT_EQ(page.code, 0) << page.err;
  for (const char* piece : {"64 GPUs of h100, 74.5 GiB a GPU", "Layouts that fit, the fastest first", "considered",
                            "impossible", "witan train ", "--num-query-groups 4"})
    EXPECT_TRUE(contains(page.out, piece)) << piece << " is missing from\n" << page.out;
  EXPECT_TRUE(page.err.starts_with("estimating ")) << "reported before any work: " << page.err;
  EXPECT_TRUE(contains(page.err, "\nplanning 64 layouts\n")) << page.err;
  EXPECT_TRUE(contains(page.err, "\nplanning to the byte 8 layouts\n")) << page.err;
  const Said said = with({"--search", "--gpus", "64", "--memory", "80GB", "--json"});
  const auto best = nlohmann::json::parse(said.out)["best"][0];
  std::istringstream flags(best["flags"].get<std::string>());
  std::vector<std::string> again = {"--gpus", "64", "--gpu", "h100", "--json"};
  for (std::string word; flags >> word;) again.push_back(word);
  const Said planned = with(again);
  ASSERT_EQ(planned.code, 0) << planned.err;
  const auto json = nlohmann::json::parse(planned.out);
  EXPECT_EQ(json["needed_bytes"], best["needed_bytes"]);
  EXPECT_DOUBLE_EQ(json["step_seconds"].get<double>(), best["step_seconds"].get<double>());
}

// 63 GPUs divide neither 64 samples nor the 4 heads, 4 layers and 64 tokens; 48 do, as 16 for each of 3 stages, and 64
// do.
TEST_F(PlanCommandTest, SearchSuggestsDivisibleNumbersOfGpus) {
  const std::vector<std::string> asked = {
      "--search", "--gpus", "63", "--global-batch-size", "64", "--micro-batch-size", "1", "--dtype", "bfloat16"};
  const Said said = plan(asked);
  EXPECT_EQ(said.code, 3) << said.err;
  EXPECT_TRUE(contains(said.out, "No layout of 63 GPUs is compatible with this model and its batch sizes. Reasons"))
      << said.out;
  EXPECT_TRUE(contains(said.out, "\n  global_batch_size / micro_batch_size = 64 is not divisible by")) << said.out;
  EXPECT_TRUE(contains(said.err, "the nearest that work are 48 and 64 GPUs")) << said.err;
  const std::vector<std::string> below = {
      "--search", "--gpus", "48", "--global-batch-size", "64", "--micro-batch-size", "1", "--dtype", "bfloat16"};
  EXPECT_EQ(plan(below).code, 0) << "the suggestion works";
}

TEST_F(PlanCommandTest, SearchKeepsExplicitLayoutFlags) {
  const std::vector<std::string> asked = {"--search", "--gpus", "8", "--dtype", "bfloat16", "--global-batch-size",
                                          "64"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), asked.begin(), asked.end());
    return plan(more);
  };
  const Said page = with({"--tensor-model-parallel-size", "4", "--micro-batch-size", "2"});
  ASSERT_EQ(page.code, 0) << page.err;
  EXPECT_TRUE(contains(page.out, "\nHeld fixed, as given: micro_batch_size = 2, tensor_model_parallel_size = 4\n"))
      << page.out;
  const Said said = with({"--mesh", "tensor=4,shard=2,expert=2", "--json"});
  ASSERT_EQ(said.code, 0) << said.err;
  const auto json = nlohmann::json::parse(said.out);
  EXPECT_EQ(json["held"]["tensor_model_parallel_size"], 4);
  EXPECT_EQ(json["held"]["expert_model_parallel_size"], 2);
  EXPECT_FALSE(json["held"].contains("micro_batch_size"));
  for (const auto& one : json["best"]) EXPECT_TRUE(contains(one["mesh"], "shard=2,tensor=4,expert=2")) << one["mesh"];
  EXPECT_GT(json["best"].size(), 0u);

  const Said none = with({"--tensor-model-parallel-size", "3"});
  EXPECT_EQ(none.code, 3) << none.out;
  EXPECT_TRUE(contains(none.out, "\n  tensor_model_parallel_size = 3 does not divide 8 ranks")) << none.out;
  EXPECT_TRUE(
      contains(none.err,
               "no layout of 8 GPUs with tensor_model_parallel_size = 3 is compatible with this model and its "
               "batch sizes; leave out what is given of a layout; with it no number up to twice as many works either"))
      << none.err;
}

// A list and a file describe the model and a machine on which it was once trained.
TEST_F(PlanCommandTest, SearchReplacesTheLayoutOfAListOrFile) {
  write_text(own_ / "mine.toml", "tensor_model_parallel_size = 2\n");
  Said said = plan({"--search", "--gpus", "2", "--dtype", "bfloat16", "--config", own_ / "mine.toml"});
  ASSERT_EQ(said.code, 0) << said.err;
  EXPECT_FALSE(contains(said.out, "Held fixed")) << said.out;
  write_text(
      own_ / "mine.args",
      "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --vocab-size 1024 --num-experts 8 --seq-length 64\n"
      "--micro-batch-size 1 --global-batch-size 8 --tokenizer-vocab-size 300 --dtype bfloat16\n"
      "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 1\n");
  said = witan({"plan", "@" + (own_ / "mine.args").string(), "--no-megatron", "--search", "--gpus", "2",
                "--pipeline-model-parallel-size", "2", "--runs-folder", own_.path()});
  EXPECT_TRUE(contains(said.out, "\nHeld fixed, as given: pipeline_model_parallel_size = 2\n")) << said.out << said.err;
}

TEST_F(PlanCommandTest, TheFullCommandOmitsLoading) {
  const Said said = plan({"--search", "--gpus", "2", "--dtype", "bfloat16", "--no-load-optim", "--run", "a b"});
  ASSERT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(said.out, "witan train --run 'a b'")) << said.out;
  EXPECT_FALSE(contains(said.out, "--no-load-optim")) << said.out;
}

TEST_F(PlanCommandTest, ASearchWithoutResultsEndsLikeARunThatDoesNotFit) {
  const Said said = plan({"--search", "--gpus", "8", "--memory", "1.2GB"});
  EXPECT_EQ(said.code, 8) << said.err;
  EXPECT_TRUE(contains(said.out, "No layout fits in 1.12 GiB per GPU")) << said.out;
  EXPECT_TRUE(contains(said.err, "no layout of 8 GPUs was found that fits in 1.12 GiB per GPU")) << said.err;
  refuses({"--search"}, 2, {"--gpus"});
  refuses({"--search", "--world-size", "8"}, 2, {"--gpus"});
}

}  // namespace
}  // namespace witan::test
