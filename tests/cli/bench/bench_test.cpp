#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/cli_support.h"
#include "support/process_state.h"
#include "witan/cli/train/planning.h"
#include "witan/data/routes/route_file.h"
#include "witan/tensor/cuda.h"

namespace witan::test {
namespace {

// Runs the command with a tiny size and no time on the CPU, and returns the file written by --json.
struct Result {
  Said said;
  nlohmann::json json;
};
Result bench(const TempFolder& folder, std::vector<std::string> args) {
  args.insert(args.begin(), "bench");
  for (const char* word : {"--device", "cpu", "--threads", "1", "--json"}) args.emplace_back(word);
  args.push_back(folder / "figures.json");
  Result result{witan(args), {}};
  EXPECT_EQ(result.said.code, 0) << result.said.err;
  EXPECT_EQ(result.said.err, "");
  result.json = nlohmann::json::parse(read_text(folder / "figures.json"));
  EXPECT_GT(result.json["ceilings"]["flops_per_s"].get<double>(), 1e8);
  EXPECT_GT(result.json["ceilings"]["bytes_per_s"].get<double>(), 1e8);
  return result;
}

// Every line took some time and did its work: its rate times its time is the known amount of work.
void expect_line(const Result& result, size_t line, const std::string& name, double flops) {
  ASSERT_LT(line, result.json["lines"].size());
  const auto& json = result.json["lines"][line];
  EXPECT_EQ(json["name"], name);
  EXPECT_GT(json["seconds"].get<double>(), 0);
  EXPECT_NEAR(json["flops_per_s"].get<double>() * json["seconds"].get<double>() / flops, 1, 1e-9) << name;
  EXPECT_TRUE(contains(result.said.out, "\n" + name + " ")) << result.said.out;
}

TEST(BenchTest, GemmMeasuresTheProductsOfALayer) {
  const TempFolder folder;
  const Result result = bench(folder, {"gemm", "--tokens", "24", "--layers", "8x16,3x5", "--seconds", "0"});
  const char* what[] = {" forward", " input gradient", " weight gradient", " weight gradient, added"};
  for (size_t i = 0; i < 8; ++i)
    expect_line(result, i, cat(i < 4 ? "8 -> 16" : "3 -> 5", what[i % 4]), 2.0 * 24 * (i < 4 ? 8 * 16 : 3 * 5));
  EXPECT_EQ(result.json["lines"].size(), 8u);
  EXPECT_TRUE(contains(result.said.out, "gemm, 24 tokens, float32")) << result.said.out;
}

TEST(BenchTest, AttentionMeasuresForwardAndBackward) {
  const TempFolder folder;
  const Result result =
      bench(folder, {"attention", "--batch", "2", "--sequence", "16", "--heads", "4", "--kv-heads", "2", "--head-size",
                     "8", "--documents", "3", "--dtype", "bfloat16", "--seconds", "0"});
  const double pairs = 2 * 4 * 16 * 17 / 2;
  expect_line(result, 0, "forward", 4 * 8 * pairs);
  expect_line(result, 1, "backward", 10 * 8 * pairs);
}

TEST(BenchTest, AttentionSupportsWindowsAndValueSizes) {
  const TempFolder folder;
  const Result result =
      bench(folder, {"attention", "--batch", "2", "--sequence", "16", "--heads", "4", "--kv-heads", "2", "--head-size",
                     "8", "--value-head-size", "6", "--window", "3", "--seconds", "0"});
  const double pairs = 2 * 4 * (1 + 2 + 14 * 3);
  expect_line(result, 0, "forward", 2 * (8 + 6) * pairs);
  expect_line(result, 1, "backward", 2 * (3 * 8 + 2 * 6) * pairs);
}

TEST(BenchTest, GenerateMeasuresOneAndSeveralTexts) {
  const TempFolder folder;
  const std::string json = folder / "figures.json";
  const Said said = witan({"bench",
                           "generate",
                           "--device",
                           "cpu",
                           "--threads",
                           "1",
                           "--texts",
                           "1,3",
                           "--prompt",
                           "5",
                           "--tokens",
                           "3",
                           "--num-layers",
                           "2",
                           "--hidden-size",
                           "16",
                           "--ffn-hidden-size",
                           "12",
                           "--num-experts",
                           "4",
                           "--vocab-size",
                           "64",
                           "--untie-embeddings-and-output-weights",
                           "--json",
                           json});
  ASSERT_EQ(said.code, 0) << said.err;
  const Result result{said, nlohmann::json::parse(read_text(json))};
  ASSERT_EQ(result.json["lines"].size(), 2u);
  EXPECT_EQ(result.json["lines"][0]["name"], "a token of 1 text");
  EXPECT_EQ(result.json["lines"][1]["name"], "a token of 3 texts");
  for (const char* texts : {"1", "3"}) {
    EXPECT_GT(result.json[cat("tokens_per_s_", texts)].get<double>(), 0);
    EXPECT_GT(result.json[cat("prompt_tokens_per_s_", texts)].get<double>(), 0);
  }
  // A token visits 2 of 4 experts; three tokens are expected to visit 4 (1 - 1/8) in total.
  const auto bytes = [&](size_t line) {
    const auto& json_line = result.json["lines"][line];
    return json_line["bytes_per_s"].get<double>() * json_line["seconds"].get<double>();
  };
  const double experts = 4.0 * 2 * 4 * 3 * 16 * 12;  // float32, two layers
  EXPECT_NEAR((bytes(1) - bytes(0)) / experts, 0.875 - 0.5, 1e-9);
}

TEST(BenchTest, MoeLayerMeasuresWithAndWithoutTheRouter) {
  const TempFolder folder;
  const Result result = bench(folder, {"moe-layer", "--tokens", "32", "--hidden", "8", "--ffn", "12", "--experts", "4",
                                       "--topk", "2", "--seconds", "0"});
  const double forward = 6.0 * 32 * 2 * 8 * 12;
  expect_line(result, 0, "routing given, forward", forward);
  expect_line(result, 1, "routing given, forward and backward", 3 * forward);
  expect_line(result, 2, "with the router, forward", forward);
  expect_line(result, 3, "with the router, forward and backward", 3 * forward);
  expect_line(result, 4, "the router's own routing given, forward and backward", 3 * forward);
  expect_line(result, 5, "with a uniform router, forward and backward", 3 * forward);
  const auto seconds = [&](size_t line) { return result.json["lines"][line]["seconds"].get<double>(); };
  EXPECT_NEAR(result.json["router_share"].get<double>(), 1 - seconds(4) / seconds(3), 1e-12);
  EXPECT_NEAR(result.json["share_over_uniform"].get<double>(), 1 - seconds(5) / seconds(3), 1e-12);
}

TEST(BenchTest, MoeLayerSupportsEveryRouter) {
  const TempFolder folder;
  const std::vector<std::vector<std::string>> routers = {
      {"--moe-router-score-function", "sigmoid", "--moe-router-enable-expert-bias", "--moe-router-num-groups", "2",
       "--moe-router-group-topk", "1", "--moe-router-load-balancing-type", "seq_aux_loss", "--sequence", "8"},
      {"--moe-router-load-balancing-type", "quantile_balancing", "--moe-z-loss-coeff", "1e-3"},
      {"--moe-router-selection", "sinkhorn", "--moe-router-sinkhorn-iterations", "3"},
      {"--moe-router-selection", "expert_choice", "--moe-input-jitter-eps", "0.01"},
      {"--moe-router-selection", "hash"},
      {"--skew", "0.5"},
      {"--skew", "1.5x"},
      {"--skew", "hot"}};
  const std::vector<std::string> sizes = {"moe-layer", "--tokens", "32",     "--hidden", "8",         "--ffn", "12",
                                          "--experts", "4",        "--topk", "2",        "--seconds", "0"};
  for (const auto& router : routers) {
    std::vector<std::string> args = sizes;
    args.insert(args.end(), router.begin(), router.end());
    EXPECT_EQ(bench(folder, args).json["lines"].size(), 6u) << router[1];
  }
  expect_refusal({"bench", "moe-layer", "--moe-router-enable-expert-bias", "--moe-router-score-function", "softmax"}, 3,
                 {"needs moe_router_score_function"});
  expect_refusal({"bench", "moe-layer", "--tokens", "16", "--sequence", "5"}, 2, {"--sequence 5"});
  for (const char* skew : {"1.5", "-0.1", "0.5x", "x", "warm", "4xx", "nan"})
    expect_refusal({"bench", "moe-layer", "--skew", skew}, 2, {"--skew", "give a share of tokens"});
  expect_refusal({"bench", "moe-layer", "--experts", "8", "--topk", "2", "--skew", "5x"}, 3,
                 {"no expert's load exceeds"});
}

TEST(BenchTest, LoadsHaveTheRequestedSkew) {
  const TempFolder folder;
  const auto load = [&](const std::string& skew, std::vector<std::string> args) {
    args.insert(args.end(), {"--skew", skew});
    return bench(folder, args).json["load_max_over_mean"].get<double>();
  };
  const std::vector<std::string> layer = {"moe-layer", "--tokens", "4096",      "--hidden", "8",         "--ffn", "8",
                                          "--topk",    "2",        "--seconds", "0",        "--experts", "16"};
  EXPECT_NEAR(load("4x", layer), 4, 0.3);
  EXPECT_DOUBLE_EQ(load("hot", layer), 8);
  EXPECT_NEAR(load("0.5", layer), 0.5 * 8 + 0.5, 0.3);
  const std::vector<std::string> step = {"step", "--steps",       "1", "--num-layers", "1",  "--hidden-size",
                                         "32",   "--num-experts", "8", "--vocab-size", "64", "--seq-length",
                                         "256"};
  EXPECT_NEAR(load("2x", step), 2, 0.4);
  expect_refusal({"bench", "step", "--num-experts", "0", "--skew", "hot"}, 2, {"the model has none"});
}

// The larger load of two ranks if all tokens choose expert 0 and one of 7 others.
TEST(BenchTest, LoadsOfRanksFollowFromExpertsAndReplicas) {
  const TempFolder folder;
  const auto load = [&](const std::string& replicas) {
    return bench(folder, {"step",  "--steps",       "1",   "--num-layers",
                          "1",     "--hidden-size", "32",  "--num-experts",
                          "8",     "--vocab-size",  "64",  "--seq-length",
                          "256",   "--ranks",       "2",   "--expert-model-parallel-size",
                          "2",     "--skew",        "hot", "--moe-replicated-experts",
                          replicas})
        .json["rank_load_max_over_mean"]
        .get<double>();
  };
  EXPECT_NEAR(load("0"), 1 + 3.0 / 7, 0.1);
  EXPECT_NEAR(load("2"), 1, 0.1);
}

TEST(BenchTest, MoeLayerSupportsTheDtypesOfFp8Training) {
  const TempFolder folder;
  const std::vector<std::string> layer = {"moe-layer", "--tokens",     "64",   "--hidden", "16", "--ffn",
                                          "16",        "--experts",    "2",    "--topk",   "1",  "--seconds",
                                          "0",         "--fp8-format", "e4m3", "--dtype"};
  for (const char* dtype : {"bfloat16", "float32"}) {
    std::vector<std::string> args = layer;
    args.emplace_back(dtype);
    EXPECT_TRUE(contains(bench(folder, args).said.out, cat(dtype, ", operands in e4m3"))) << dtype;
  }
  for (const char* dtype : {"float16", "float64"}) {
    std::vector<std::string> args = layer;
    args.insert(args.begin(), "bench");
    args.insert(args.end(), {dtype, "--device", "cpu"});
    expect_refusal(args, 3,
                   {cat("--fp8-format e4m3 with --dtype ", dtype, ": products in 8 bits are of bfloat16 or float32"),
                    "give --dtype bfloat16, or --fp8-format none"});
  }
}

// The layer computes the recorded experts.
TEST(BenchTest, MoeLayerReplaysRecordedRoutes) {
  const TempFolder folder;
  RouteFile file;
  file.step = 1;
  file.experts = 4, file.topk = 2;
  file.all_sequences = file.sequences = 2;
  file.sequence_length = 3;
  file.positions = {{0, 3}};
  file.tokens = {1, 2, 3, 4, 5, 6};
  file.layers = {{1, {0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1}, std::vector<float>(12, 0.5f)},
                 {3, {0, 1, 0, 2, 0, 3, 0, 1, 0, 2, 0, 3}, std::vector<float>(12, 0.5f)}};
  const std::string path = folder / "0-of-1.routes";
  std::ofstream(path, std::ios::binary) << encode_routes(file);
  const Result result =
      bench(folder, {"moe-layer", "--hidden", "8", "--ffn", "12", "--routes", path, "--layer", "3", "--seconds", "0"});
  expect_line(result, 0, "routing given, forward", 6.0 * 6 * 2 * 8 * 12);
  EXPECT_TRUE(contains(result.said.out, ", 2.00 given")) << result.said.out;
  const auto refused = [&](std::vector<std::string> more, const char* why) {
    more.insert(more.begin(), {"bench", "moe-layer", "--routes", path});
    expect_refusal(more, 2, {why});
  };
  expect_refusal({"bench", "moe-layer", "--layer", "3"}, 2, {"which is not given"});
  refused({"--layer", "2"}, "no routes of --layer 2; its first layer is 1");
  refused({"--experts", "8"}, "was recorded with 4");
  refused({"--topk", "1"}, "was recorded with 2");
  refused({"--tokens", "7"}, "has 6 tokens");
  refused({"--skew", "hot"}, "both say");
  expect_refusal({"bench", "moe-layer", "--routes", folder / "none"}, 4, {"none"});
}

TEST(BenchTest, StepMeasuresAConfiguration) {
  const TempFolder folder;
  const Result result = bench(folder, {"step",
                                       "--steps",
                                       "2",
                                       "--num-layers",
                                       "1",
                                       "--hidden-size",
                                       "32",
                                       "--num-attention-heads",
                                       "2",
                                       "--num-query-groups",
                                       "1",
                                       "--ffn-hidden-size",
                                       "16",
                                       "--num-experts",
                                       "2",
                                       "--seq-length",
                                       "8",
                                       "--vocab-size",
                                       "64",
                                       "--micro-batch-size",
                                       "1",
                                       "--global-batch-size",
                                       "2",
                                       "--ranks",
                                       "2",
                                       "--runs-folder",
                                       folder.path().string()});
  EXPECT_TRUE(contains(result.said.out, "\n16 tokens ")) << result.said.out;
  EXPECT_TRUE(contains(result.said.out, "step, 2 ranks, ")) << result.said.out;
  const double seconds = result.json["lines"][0]["seconds"].get<double>();
  EXPECT_NEAR(result.json["tokens_per_s"].get<double>() * seconds, 16, 1e-6);
  EXPECT_NEAR(result.json["first_loss"].get<double>(), std::log(64), 0.5);
  EXPECT_GT(result.json["arena_bytes"].get<double>(), 0);
}

// Uses only stored ceilings; nothing is measured for the prediction.
TEST(BenchTest, StepReportsThePrediction) {
  const TempFolder folder;
  const std::vector<std::string> step = {"step", "--steps",      "1", "--num-layers", "1",  "--hidden-size",
                                         "32",   "--seq-length", "8", "--vocab-size", "64", "--ranks",
                                         "1"};
  const Variable cache("XDG_CACHE_HOME", folder.path().string());
  EXPECT_FALSE(bench(folder, step).json.contains("predicted_s"));
  Ceilings ceilings;
  ceilings.load = {"float32", 1, 1};
  ceilings.fma_flops = 1e11;
  ceilings.copy_bytes = 1e10;
  ceilings.kernels["gemm"] = {1e9, 1e6, 1};  // the mean rate for all others
  cli::ceilings_file().keep(ceilings);
  const Result result = bench(folder, step);
  const double predicted = result.json.at("predicted_s").get<double>(),
               seconds = result.json["lines"][0]["seconds"].get<double>();
  EXPECT_GT(predicted, 0);
  const std::string expected =
      fmt::format("{:.1f} ms ({:+.0f} %) by what was measured here", 1e3 * predicted, 100 * (predicted / seconds - 1));
  EXPECT_TRUE(contains(result.said.out, expected)) << result.said.out << expected;
}

TEST(BenchTest, StepSupportsMegatronFlags) {
  const TempFolder folder;
  const Said said = witan({"bench",
                           "step",
                           "--steps",
                           "1",
                           "--megatron",
                           "--train-iters",
                           "5",
                           "--lr",
                           "1e-3",
                           "--num-layers",
                           "1",
                           "--hidden-size",
                           "32",
                           "--num-attention-heads",
                           "2",
                           "--seq-length",
                           "8",
                           "--max-position-embeddings",
                           "8",
                           "--vocab-size",
                           "64",
                           "--micro-batch-size",
                           "1",
                           "--bf16",
                           "--device",
                           "cpu",
                           "--runs-folder",
                           folder.path().string()});
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(said.out, "bfloat16")) << said.out;
}

TEST(BenchTest, CollectivesCountSentBytes) {
  const TempFolder folder;
  const Result result = bench(folder, {"collectives", "--ranks", "3", "--sizes", "12KiB"});
  const double bytes = 12288;
  const std::pair<std::string, double> expected[] = {{"all-reduce, 12.0 KiB", 2 * bytes * 2 / 3},
                                                     {"reduce-scatter, 12.0 KiB", bytes * 2 / 3},
                                                     {"all-gather, 12.0 KiB", bytes * 2 / 3},
                                                     {"all-to-all, 12.0 KiB", bytes * 2 / 3}};
  ASSERT_EQ(result.json["lines"].size(), std::size(expected));
  for (size_t i = 0; i < std::size(expected); ++i) {
    const auto& line = result.json["lines"][i];
    EXPECT_EQ(line["name"], expected[i].first);
    EXPECT_NEAR(line["bytes_per_s"].get<double>() * line["seconds"].get<double>(), expected[i].second, 1e-3);
  }
}

TEST(BenchTest, ExchangeCountsSentBytes) {
  const TempFolder folder;
  const Result result = bench(folder, {"exchange", "--ranks", "2", "--row", "64", "--sizes", "1000"});
  ASSERT_EQ(result.json["lines"].size(), 1u);  // CPU ranks have no peer memory
  const auto& line = result.json["lines"][0];
  EXPECT_EQ(line["name"], "all-to-all, contiguous, 896 B");  // 14 rows
  EXPECT_NEAR(line["bytes_per_s"].get<double>() * line["seconds"].get<double>(), 448, 1e-6);
}

// The minimum is one row for each rank; uncounted figures are null.
TEST(BenchTest, ExchangeMovesAtLeastARow) {
  const TempFolder folder;
  const Result result = bench(folder, {"exchange", "--ranks", "2", "--row", "64", "--sizes", "1"});
  const auto& line = result.json["lines"].at(0);
  EXPECT_EQ(line["name"], "all-to-all, contiguous, 128 B");
  EXPECT_TRUE(line["flops_per_s"].is_null());
  expect_refusal({"bench", "exchange", "--ranks", "2", "--device", "cpu", "--sizes", "0"}, 2, {"no rows"});
}

// These measurements would take an hour each.
TEST(BenchTest, RefusesUnwritableFilesBeforeMeasuring) {
  const TempFolder folder;
  const std::string nowhere = folder / "nodir" / "x.json";
  const std::vector<std::string> refused = {cat("--json ", nowhere, ": there is no folder "), "nodir"};
  for (const char* kind : {"gemm", "attention", "moe-layer"})
    expect_refusal({"bench", kind, "--device", "cpu", "--seconds", "3600", "--json", nowhere}, 4, refused);
  for (const char* kind : {"collectives", "exchange"})
    expect_refusal({"bench", kind, "--device", "cpu", "--ranks", "2", "--json", nowhere}, 4, refused);
  const std::vector<std::string> model = {"--device",      "cpu", "--num-layers", "1",  "--hidden-size", "32",
                                          "--num-experts", "2",   "--vocab-size", "64", "--seq-length",  "8"};
  for (std::vector<std::string> args : {std::vector<std::string>{"bench", "step", "--steps", "1000000000"},
                                        {"bench", "generate", "--tokens", "100000"}}) {
    args.insert(args.end(), model.begin(), model.end());
    args.insert(args.end(), {"--json", nowhere});
    expect_refusal(args, 4, refused);
  }
  expect_refusal({"bench", "gemm", "--json", folder.path().string()}, 2, {"is a folder: name a file in it"});
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  write_text(folder / "notes.json", "{}");
  expect_refusal({"bench", "gemm", "--seconds", "3600", "--json", folder / "notes.json"}, 2,
                 {"notes.json is there already and is no file of figures"});
}

TEST(BenchTest, StepMeasuresARunWithSamples) {
  const TempFolder folder;
  write_text(folder / "c.toml", "[train]\nsample_interval = 20\nsample_tokens = 8\n");
  for (std::vector<std::string> args :
       {std::vector<std::string>{"bench", "step", "--steps", "1"},
        {"bench", "generate", "--tokens", "2", "--prompt", "2", "--texts", "1"},
        {"bench", "generate", "--tokens", "2", "--prompt", "2", "--texts", "3", "--temperature", "0.8", "--top-k", "5",
         "--top-p", "0.9", "--min-p", "0.01", "--logprobs"}}) {
    args.insert(args.end(), {"--config", folder / "c.toml", "--device", "cpu", "--num-layers", "1", "--hidden-size",
                             "32", "--num-experts", "2", "--vocab-size", "64", "--seq-length", "8"});
    const Said said = witan(args);
    EXPECT_EQ(said.code, 0) << said.err;
  }
}

TEST(BenchTest, RefusesImpossibleOptions) {
  expect_refusal({"bench"}, 2,
                 {"give a subcommand: step, generate, moe-layer, attention, gemm, collectives, exchange"});
  expect_refusal({"bench", "generate", "--top-p", "2"}, 3, {"top_p must be above 0 and at most 1"});
  expect_refusal({"bench", "gemm", "--layers", "8by16"}, 2, {"--layers 8by16", "for example 512x768"});
  expect_refusal({"bench", "attention", "--kv-heads", "3"}, 2, {"--kv-heads 3 must divide --heads 4"});
  expect_refusal({"bench", "moe-layer", "--experts", "2", "--topk", "3"}, 2, {"--topk 3 exceeds --experts 2"});
  expect_refusal({"bench", "collectives", "--ranks", "1", "--device", "cpu"}, 2, {"--ranks 2 or more"});
  expect_refusal({"bench", "gemm", "--device", "tpu"}, 2, {"--device", "tpu"});
  if (cuda::devices() == 0) {
    expect_refusal({"bench", "gemm", "--device", "cuda"}, 10, {"--device cuda: "});
    expect_refusal({"bench", "step", "--device", "cuda"}, 10, {"device = cuda: "});
  }
}

}  // namespace
}  // namespace witan::test
