#include "witan/planner/plan.h"

#include <gtest/gtest.h>

#include "planner/real_run.h"
#include "witan/autograd/offload_store.h"
#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/planner/memory/reserve.h"
#include "witan/planner/pages/plan_page.h"
#include "witan/tensor/cuda.h"

namespace witan {
namespace {

using testing::run_engine;
using testing::small_config;

void expect_kept(const RunConfig& config, size_t evaluated = 3) {
  testing::expect_kept(config, {3, evaluated});
}

struct Case {
  const char* dtype;
  const char* recompute;
  int64_t ranks, expert, experts, accumulations;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* dtype : {"float32", "bfloat16"})
    for (const char* recompute : {"none", "selective", "full"})
      for (const auto& [ranks, expert] :
           std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {2, 1}, {2, 2}, {4, 1}, {4, 2}, {4, 4}})
        for (const int64_t experts : {int64_t{0}, int64_t{8}})
          for (const int64_t accumulations : {int64_t{1}, int64_t{3}})
            if (experts > 0 || expert == 1) all.push_back({dtype, recompute, ranks, expert, experts, accumulations});
  return all;
}

TEST(Plan, PredictsTheArenaOfTheRunOnEveryRankAndTag) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(cat(c.dtype, ", recompute ", c.recompute, ", ", c.ranks, " ranks, experts over ", c.expert, ", ",
                     c.experts, " experts, ", c.accumulations, " micro-batches a rank"));
    RunConfig config = small_config();
    config.model.dtype = c.dtype;
    config.model.recompute_granularity = c.recompute;
    config.model.moe.num_experts = c.experts;
    config.train.global_batch_size = config.train.micro_batch_size * c.ranks * c.accumulations;
    config.parallel = {c.ranks, c.expert, 1};
    expect_kept(config);
  }
}

// Covers state that only float16 models have, and the state and computation of QK-clip.
TEST(Plan, PredictsTheArenaInFloat16AndWithQkClip) {
  for (const char* dtype : {"float16", "float32"})
    for (const auto& [ranks, expert] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {4, 2}})
      for (const char* strategy : {"no_shard", "optim_grads_params"}) {
        SCOPED_TRACE(cat(dtype, ", ", ranks, " ranks, ", strategy));
        RunConfig config = small_config();
        config.model.dtype = dtype;
        config.optimizer.optimizer = "muon";
        config.optimizer.qk_clip = true;
        config.parallel = {ranks, expert, 1};
        config.parallel.data_parallel_sharding_strategy = ranks > 1 ? strategy : "auto";
        expect_kept(config);
      }
}

// An evaluation needs the memory of one micro-batch, however many it has; with a pipeline it needs that of a step's
// micro-batches.
TEST(Plan, PredictsTheArenaForEvaluationsOfAnyLength) {
  RunConfig config = small_config();
  config.model.moe.num_experts = 0;
  config.parallel = {2, 1, 1};
  for (const size_t evaluated : {1, 2, 200}) expect_kept(config, evaluated);
  config.parallel.pipeline_model_parallel_size = 2;
  for (const size_t evaluated : {1, 2, 7, 8, 9}) expect_kept(config, evaluated);
}

// A second micro-batch finds either no units gathered by the first one or all of them.
TEST(Plan, PredictsTheArenaOfEvaluationsWithShardedValues) {
  for (const bool reshard : {true, false})
    for (const size_t evaluated : {1, 2, 5}) {
      RunConfig config = testing::gpt_run_config();
      config.model.hidden_dropout = config.model.attention.attention_dropout = 0;
      config.model.untie_embeddings_and_output_weights = true;
      config.train.global_batch_size = 8;
      config.parallel = {2, 1, 1};
      config.parallel.use_distributed_optimizer = true;
      config.parallel.data_parallel_sharding_strategy = "optim_grads_params";
      config.parallel.reshard_after_forward = reshard;
      expect_kept(config, evaluated);
    }
}

TEST(Plan, PredictsTheArenaForModelVariants) {
  const auto varied = [](auto change) {
    RunConfig config = small_config();
    config.train.global_batch_size = 8;
    config.parallel = {2, 2, 1};
    change(config);
    expect_kept(config);
  };
  varied([](RunConfig& c) { c.parallel.threads = 3; });
  varied([](RunConfig& c) { c.model.moe.moe_grouped_gemm = false; });
  varied([](RunConfig& c) { c.model.moe.moe_layer_freq = "[0,1]"; });
  varied([](RunConfig& c) { c.model.mlp.swiglu = false; });
  varied([](RunConfig& c) { c.model.norm.normalization = "LayerNorm"; });
  varied([](RunConfig& c) { c.model.untie_embeddings_and_output_weights = true; });
  varied([](RunConfig& c) { c.optimizer.optimizer = "sgd"; });
  varied([](RunConfig& c) { c.model.dtype = "float64"; });
  varied([](RunConfig& c) { c.train.check_states = true; });
  varied([](RunConfig& c) { c.train.sample_tokens = 400; });  // the KV cache takes most of the memory
}

TEST(Plan, PredictsTheArenaOfEveryPipelineStage) {
  const auto piped = [](auto change) {
    RunConfig config = small_config();
    config.model.num_layers = 4;
    config.parallel = {2, 1, 1};
    config.parallel.pipeline_model_parallel_size = 2;
    change(config);
    expect_kept(config);
  };
  piped([](RunConfig&) {});
  piped([](RunConfig& c) { c.model.untie_embeddings_and_output_weights = true; });
  piped([](RunConfig& c) { c.parallel.num_virtual_stages_per_pipeline_rank = 2; });
  piped([](RunConfig& c) { c.model.dtype = "bfloat16"; });
  piped([](RunConfig& c) { c.model.recompute_granularity = "full"; });
  piped([](RunConfig& c) { c.model.init_method = "torch"; });
  piped([](RunConfig& c) {
    c.parallel.ranks = 4;
    c.parallel.expert_model_parallel_size = 2;
    c.parallel.deterministic = true;
  });
  piped([](RunConfig& c) {
    c.parallel.ranks = 4;
    c.parallel.use_distributed_optimizer = true;
    c.train.check_states = true;
  });
}

// The plan of a run on GPUs shows what waits on the host, and needs no time for it unless the link is slow.
TEST(Plan, ShowsActivationsOfTheHost) {
  RunConfig config = small_config();
  config.model.num_layers = 5;
  config.model.dtype = "bfloat16";
  config.model.recompute_granularity = "full";
  config.parallel.device = "cuda";
  config.parallel.offload_activations = true;
  const Plan plan = make_plan(resolve(config, {}));
  const int64_t input = 2 * 12 * 32 * 2;  // B S D of bfloat16
  EXPECT_EQ(plan.offload_bytes(), 4 * OffloadStore::room_for(input)) << "the last block's input stays";
  EXPECT_EQ(plan.ranks[0].offloaded, std::vector<double>{4.0 * input});
  EXPECT_EQ(quick_plan(resolve(config, {})).offload_bytes(), plan.offload_bytes());
  const std::string bytes = format_bytes(static_cast<double>(plan.offload_bytes()));
  EXPECT_NE(format_memory(plan, 0).find(bytes + " are pinned for activations"), std::string::npos);
  EXPECT_NE(plan_json(plan, 0, std::nullopt).find(cat("\"offload_bytes\": ", plan.offload_bytes())), std::string::npos);
}

// A pipeline evaluates as many micro-batches at a time as a step has.
TEST(Plan, EvaluationsNeedOneMicroBatchAtATime) {
  const auto first_stage = [](int64_t global_batch_size) {
    RunConfig config = small_config();
    config.parallel = {2, 1, 1};
    config.parallel.pipeline_model_parallel_size = 2;
    config.train.global_batch_size = global_batch_size;
    return make_plan(resolve(config, {})).ranks.front();
  };
  const auto flops_of = [](const KernelCosts& costs) {
    double flops = 0;
    for (const auto& [part, kernels] : costs)
      for (const auto& [kernel, cost] : kernels) flops += cost.flops;
    return flops;
  };
  const RankPlan two = first_stage(4), eight = first_stage(16);
  EXPECT_FALSE(two.eval_sent.empty());
  EXPECT_EQ(two.eval_sent, eight.eval_sent);
  EXPECT_GT(flops_of(two.evaluation), 0);
  EXPECT_DOUBLE_EQ(flops_of(two.evaluation), flops_of(eight.evaluation));
}

TEST(Reserve, GrowsWithTheVocabularyAndTheHeldOutBatches) {
  const RunConfig config = small_config();
  RunConfig words = config, looks = config;
  words.model.vocab_size += 1000;
  looks.train.eval_iters += 10;
  EXPECT_EQ(reserve_bytes(words) - reserve_bytes(config), 1000 << 10);
  EXPECT_GE(reserve_bytes(looks) - reserve_bytes(config),
            2 * 20 * 10 * config.train.global_batch_size * config.data.seq_length);
}

TEST(Plan, PredictsTheArenaWithDropoutBiasesAndLearnedPositions) {
  for (const char* dtype : {"float32", "bfloat16"})
    for (const char* granularity : {"none", "selective", "full"})
      for (const int ranks : {1, 2}) {
        RunConfig dense = testing::gpt_run_config(), moe = small_config();
        testing::drop(moe);
        for (RunConfig* config : {&dense, &moe}) {
          config->model.dtype = dtype;
          config->model.recompute_granularity = granularity;
          config->train.sample_tokens = 0;
          config->parallel = {ranks, 1, 1};
          EXPECT_EQ(make_plan(resolve(*config, {})).arena_bytes(), run_engine(*config, 3).arena_high_water)
              << dtype << ", recompute " << granularity << ", " << ranks << " ranks, " << config->model.moe.num_experts
              << " experts";
        }
      }
}

// A sample ends at the last learned position, whatever the lengths of prompt and requested text.
TEST(Plan, SamplesEndAtTheLastLearnedPosition) {
  RunConfig config = testing::gpt_run_config();
  for (const std::string prompt : {"", "a prompt", "a prompt that has far more bytes than the model has positions"}) {
    config.train.sample_prompt = prompt;
    config.train.sample_tokens = 1000;
    EXPECT_GT(make_plan(resolve(config, {})).arena_bytes(), 0) << prompt;
  }
}

// Dropout masks are regenerated, not stored: dropout needs one temporary tensor [B, S, D] for a model of any depth.
TEST(Plan, DropoutStoresNoMasks) {
  for (const int64_t layers : {2, 6}) {
    RunConfig config = small_config();
    config.model.num_layers = layers;
    const int64_t before = make_plan(resolve(config, {})).ranks[0].tags.at("activations");
    testing::drop(config);
    const int64_t tensor = 2 * 12 * 32 * 4;
    EXPECT_LE(make_plan(resolve(config, {})).ranks[0].tags.at("activations"), before + tensor) << layers << " layers";
  }
}

TEST(Plan, CapacityReducesThePredictedArena) {
  for (const char* granularity : {"none", "full"})
    for (const auto& [ranks, expert] : std::vector<std::pair<int, int>>{{1, 1}, {2, 2}, {4, 4}}) {
      RunConfig config = small_config();
      config.model.recompute_granularity = granularity;
      config.train.sample_tokens = 0;
      config.parallel = {ranks, expert, 1};
      const int64_t dropless = make_plan(resolve(config, {})).arena_bytes();
      for (const char* policy : {"probs", "position"}) {
        config.model.moe.moe_expert_capacity_factor = 0.5;
        config.model.moe.moe_token_drop_policy = policy;
        SCOPED_TRACE(cat(policy, ", recompute ", granularity, ", experts over ", expert));
        expect_kept(config);
        EXPECT_LT(make_plan(resolve(config, {})).arena_bytes(), dropless);
      }
    }
}

RunConfig divided_on_gpus() {
  RunConfig config = small_config();
  config.model.moe.moe_router_topk = 2;
  config.parallel = {.ranks = 4, .expert_model_parallel_size = 4, .threads = 1, .device = "cuda"};
  return config;
}

// For GPUs that are not in this machine, ranks of one host are assumed to reach each other's GPUs, whether they are
// threads or processes; ranks of several hosts never do.
TEST(Plan, ReportsHowGpusExchangeRowsAndWhetherStepsAreRecorded) {
  if (cuda::devices() > 0) GTEST_SKIP() << "GPUs of this machine are probed";
  RunConfig config = divided_on_gpus();
  const Plan threads = make_plan(resolve(config, {}));
  EXPECT_TRUE(threads.peers);
  EXPECT_EQ(threads.why_eager(), "");
  EXPECT_EQ(threads.ranks[0].sent.at("expert").count("push_rows"), 1u);
  config.parallel.ranks_per_process = 1;
  const Plan one_host = make_plan(resolve(config, {}));
  EXPECT_TRUE(one_host.peers);
  EXPECT_EQ(one_host.why_eager(), "");
  EXPECT_EQ(one_host.ranks[0].sent.at("expert").count("push_rows"), 1u);
  EXPECT_EQ(one_host.arena_bytes(), threads.arena_bytes());
  config.parallel.peer_islands = {0, 0, 1, 1};
  const Plan processes = make_plan(resolve(config, {}));
  EXPECT_FALSE(processes.peers);
  EXPECT_NE(processes.why_eager().find("NCCL"), std::string::npos);
  EXPECT_EQ(processes.ranks[0].sent.at("expert").count("push_rows"), 0u);
  const std::string page = format_plan(processes, 0, std::nullopt);
  for (const char* words : {"the step is eager, because experts' rows are exchanged over NCCL",
                            "processes cannot access each other's memory", "No time is predicted"})
    EXPECT_NE(page.find(words), std::string::npos) << words << " is missing from\n" << page;
  EXPECT_NE(format_plan(threads, 0, std::nullopt).find("the step is captured as one CUDA graph\n"), std::string::npos);
  EXPECT_NE(plan_json(processes, 0, std::nullopt).find("\"exchange\": \"NCCL\""), std::string::npos);
}

TEST(Plan, UsesTheResultOfProbingPeerMemory) {
  RunConfig config = divided_on_gpus();
  config.parallel.ranks_per_process = 1;
  const auto plan = [&](int64_t expert_ranks, const std::vector<int>& islands) {
    config.parallel.expert_model_parallel_size = expert_ranks;
    config.parallel.peer_islands = islands;
    return make_plan(resolve(config, {}));
  };
  EXPECT_TRUE(plan(4, {0, 0, 0, 0}).peers);
  EXPECT_FALSE(plan(4, {0, 0, 0, 1}).peers);
  EXPECT_TRUE(plan(2, {0, 0, 1, 1}).peers) << "each expert-parallel group is on its own host";
  EXPECT_FALSE(plan(2, {0, 1, 0, 1}).peers);
  // One group reaches its peers' GPUs and the other does not, so their ranks are planned separately.
  const Plan mixed = plan(2, {0, 0, 1, 2});
  EXPECT_FALSE(mixed.peers);
  for (const RankPlan& rank : mixed.ranks)
    EXPECT_EQ(rank.sent.at("expert").count("push_rows"), rank.rank < 2 ? 1u : 0u) << "rank " << rank.rank;
}

TEST(Plan, ReportsThatTheEnvironmentDisablesPeerMemory) {
  const Facts forbidden = {.peer_memory = false};
  const ResolvedConfig config = resolve(divided_on_gpus(), forbidden);
  EXPECT_FALSE(config->parallel.peer_memory);
  EXPECT_FALSE(config.with([](RunConfig& values) { values.train.seed = 3; })->parallel.peer_memory);
  const Plan plan = make_plan(config);
  EXPECT_FALSE(plan.peers);
  EXPECT_EQ(plan.why_eager(),
            "experts' rows are exchanged over NCCL, which needs their counts on the host (WITAN_COMM_PEERS = 0); "
            "moe_exchange_factor = 1.5 does without");
  const std::string page = format_plan(plan, 0, std::nullopt);
  EXPECT_NE(page.find("are exchanged with NCCL, as WITAN_COMM_PEERS=0 asks for"), std::string::npos) << page;
}

// Fixed send capacities need no counts on the host, so steps are recorded without peer memory too. With peer memory
// they make no difference.
TEST(Plan, RecordsStepsWithFixedCapacitiesWithoutPeerMemory) {
  RunConfig config = divided_on_gpus();
  config.model.moe.moe_exchange_factor = 1.5;
  const Plan without = make_plan(resolve(config, {.peer_memory = false}));
  EXPECT_EQ(without.why_eager(), "");
  EXPECT_FALSE(without.peers);
  EXPECT_EQ(without.ranks[0].sent.at("expert").count("all_to_all"), 0u);
  config.parallel.ranks_per_process = 1;
  config.parallel.peer_islands = {0, 0, 0, 0};
  const Plan with = make_plan(resolve(config, {}));
  EXPECT_EQ(with.why_eager(), "");
  EXPECT_EQ(with.ranks[0].sent.at("expert").count("all_to_all_equal"), 0u);
  config.model.moe.moe_exchange_factor = 0;
  EXPECT_EQ(make_plan(resolve(config, {})).arena_bytes(), with.arena_bytes());

  config.model.moe.moe_exchange_factor = 1.5;
  config.model.moe.moe_replicated_experts = 1;
  EXPECT_EQ(make_plan(resolve(config, {.peer_memory = false})).why_eager(),
            "moe_replicated_experts copies experts over NCCL, which needs the rows of each on the host");
}

// Through the host's memory rows travel with exact counts, which stay on the device: a fixed capacity makes no
// difference, and replicas are recorded too.
TEST(Plan, RecordsStepsThroughMemoryOfTheHost) {
  RunConfig config = divided_on_gpus();
  config.parallel.ranks_per_process = 1;
  config.parallel.peer_islands = {0, 1, 2, 3};
  const int64_t eager = make_plan(resolve(config, {})).arena_bytes();
  config.parallel.host_islands = {0, 0, 0, 0};
  const Plan plan = make_plan(resolve(config, {}));
  EXPECT_EQ(plan.why_eager(), "");
  EXPECT_FALSE(plan.peers);
  EXPECT_EQ(plan.ranks[0].sent.at("expert").count("all_to_all"), 1u);
  EXPECT_EQ(plan.arena_bytes(), eager) << "the memory of exact counts";
  const std::string page = format_plan(plan, 0, std::nullopt);
  EXPECT_NE(page.find("tokens for experts go through memory of the host, as these GPUs cannot access each other's"),
            std::string::npos)
      << page;
  EXPECT_NE(plan_json(plan, 0, std::nullopt).find("\"exchange\": \"host memory\""), std::string::npos);

  config.model.moe.moe_exchange_factor = 1.5;
  EXPECT_EQ(make_plan(resolve(config, {})).arena_bytes(), eager);
  config.model.moe.moe_replicated_experts = 1;
  EXPECT_EQ(make_plan(resolve(config, {})).why_eager(), "");
}

// Two groups of two GPUs each act as two hosts: tokens travel through peer memory within a host, and with fixed
// capacities between hosts.
TEST(Plan, HierarchicalDispatchNeedsPeerMemoryWithinHostsOnly) {
  RunConfig config = divided_on_gpus();
  config.parallel.ranks_per_process = 1;
  config.parallel.peer_islands = {0, 0, 1, 1};
  config.parallel.expert_model_parallel_size = 4;
  config.parallel.hierarchical_expert_parallel_size = 2;
  EXPECT_NE(make_plan(resolve(config, {})).why_eager().find("moe_exchange_factor = 1.5 does without"),
            std::string::npos);
  config.model.moe.moe_exchange_factor = 1.5;
  const Plan plan = make_plan(resolve(config, {}));
  EXPECT_EQ(plan.why_eager(), "");
  EXPECT_TRUE(plan.peers);
  EXPECT_EQ(plan.ranks[0].sent.at("experts of host").count("push_rows"), 1u);
  EXPECT_EQ(plan.ranks[0].sent.at("experts between hosts").count("all_to_all"), 0u);
  const std::string page = format_plan(plan, 0, std::nullopt);
  EXPECT_NE(page.find("tokens for experts go to each host once, and within it are written directly into the memory of "
                      "the expert's GPU"),
            std::string::npos)
      << page;
  config.parallel.peer_islands = {0, 1, 0, 1};
  EXPECT_FALSE(make_plan(resolve(config, {})).peers) << "neighbours are not on one host";
}

// The receive buffers of dropless routing hold the most that all ranks could send.
TEST(Plan, ShowsMemoryOfBalancedRoutingBesideTheWorstCase) {
  RunConfig config = divided_on_gpus();
  const Plan plan = make_plan(resolve(config, {}), {.prompt_tokens = {}, .balanced = true});
  ASSERT_TRUE(plan.balanced_activations);
  EXPECT_LT(*plan.balanced_activations, plan.ranks[0].tags.at("activations"));
  RunConfig capped = config;
  capped.model.moe.moe_expert_capacity_factor = 1;
  const Plan bounded = make_plan(resolve(capped, {}), {.prompt_tokens = {}, .balanced = true});
  EXPECT_FALSE(bounded.balanced_activations);
  EXPECT_EQ(*plan.balanced_activations, bounded.ranks[0].tags.at("activations"));
  Plan severe = plan;
  severe.balanced_activations = plan.ranks[0].tags.at("activations") / 2;
  EXPECT_NE(format_plan(severe, 0, std::nullopt).find("--moe-expert-capacity-factor bounds them"), std::string::npos);
  severe.balanced_activations = plan.ranks[0].tags.at("activations");
  EXPECT_EQ(format_plan(severe, 0, std::nullopt).find("worst case"), std::string::npos);
}

// Qwen3-30B's shapes on eight GPUs: each would hold 108 GiB of activations, most of them in receive buffers for the
// worst case.
// worst case.
TEST(Plan, BoundedReceiveBuffersTakeLittleMoreThanUnshardedExperts) {
  RunConfig config;
  config.model.num_layers = 48;
  config.model.hidden_size = 2048;
  config.model.vocab_size = 151936;
  config.model.dtype = "bfloat16";
  config.model.attention.num_attention_heads = 32;
  config.model.attention.num_query_groups = 4;
  config.model.attention.kv_channels = 128;
  config.model.moe.num_experts = 128;
  config.model.moe.moe_router_topk = 8;
  config.model.moe.moe_ffn_hidden_size = 768;
  config.data.seq_length = 4096;
  config.train.micro_batch_size = 1;
  config.train.sample_tokens = 0;
  const auto activations = [&](int ranks, double factor) {
    config.parallel = {.ranks = ranks, .expert_model_parallel_size = ranks, .threads = 1, .device = "cuda"};
    config.train.global_batch_size = ranks;
    config.model.moe.moe_pool_factor = factor;
    const Plan plan = make_plan(resolve(config, {}), {.ranks = PlanOptions::Ranks::by_class, .most_classes = 1});
    return static_cast<double>(plan.ranks.front().tags.at("activations"));
  };
  // Dispatched rows are copies of tokens (2 bytes per element in every layer), which unsharded experts do not make.
  constexpr double kCopies = 48.0 * 4096 * 8 * 2048 * 2;
  const double undivided = activations(1, 0), whole = undivided + kCopies;
  const double worst = activations(8, 0), bounded = activations(8, 1.5);
  EXPECT_LE(undivided, 0.75 * whole) << undivided / whole;
  EXPECT_GT(worst, 5 * whole);
  EXPECT_LE(bounded, 1.3 * whole) << bounded / whole;
}

TEST(Plan, RecomputationReducesMemory) {
  RunConfig config = small_config();
  config.model.num_layers = 6;
  std::vector<int64_t> bytes;
  for (const char* granularity : {"none", "selective", "full"}) {
    config.model.recompute_granularity = granularity;
    bytes.push_back(make_plan(resolve(config, {})).arena_bytes());
  }
  EXPECT_GT(bytes[0], bytes[1]);
  EXPECT_GT(bytes[1], bytes[2]);
}

TEST(Plan, PrintsCountsPartsMemoryAndTraffic) {
  RunConfig config = small_config();
  config.parallel = {2, 2, 1};
  const Plan plan = make_plan(resolve(config, {}));
  const std::string page = format_plan(plan, 2 * plan.resident_bytes(), std::nullopt);
  for (const char* word :
       {"exact", "active for one token", "as Megatron-LM counts", "experts", "attention", "router", "optimizer",
        "weights", "arena", "all_to_all", "all_reduce", "reserve for everything else", "usable"})
    EXPECT_NE(page.find(word), std::string::npos) << word << " is missing from\n" << page;
  EXPECT_EQ(page.find("IT DOES NOT FIT"), std::string::npos);
  EXPECT_NE(format_memory(plan, plan.resident_bytes() - 1).find("IT DOES NOT FIT"), std::string::npos);
}

double flops_of(const Plan& plan, const std::string& part, const std::string& prefix) {
  double sum = 0;
  for (const RankPlan& rank : plan.ranks)
    for (const auto& [kernel, cost] : rank.step.at(part))
      if (kernel.starts_with(prefix)) sum += cost.flops;
  return sum;
}

// The reference models of docs/parity.md, 24 blocks of width 512, one micro-batch of 8 x 2048 tokens: 6 FLOPs for every
// weight that multiplies a token, and 14 (4 forward, 10 backward) for every channel of a visible pair of positions.
TEST(Plan, FlopsMatchTheClosedFormulaForReferenceModels) {
  for (const int64_t experts : {int64_t{0}, int64_t{64}}) {
    RunConfig config;
    config.model.num_layers = 24;
    config.model.hidden_size = 512;
    config.model.vocab_size = 128256;
    config.model.untie_embeddings_and_output_weights = true;
    config.model.attention.kv_channels = 128;
    config.model.attention.num_query_groups = 1;
    config.model.mlp.ffn_hidden_size = 1792;
    config.model.moe.num_experts = experts;
    config.model.moe.moe_router_topk = 1;
    config.model.moe.moe_router_pre_softmax = true;
    config.data.seq_length = 2048;
    config.train.micro_batch_size = config.train.global_batch_size = 8;
    config.train.sample_tokens = 0;
    config.parallel = {1, 1, 1};
    config.validate();
    const Plan plan = make_plan(resolve(config, {}));
    const double T = 16384, L = 24, D = 512, F = 1792, V = 128256, hd = 128, H = 4, S = 2048;
    EXPECT_DOUBLE_EQ(flops_of(plan, "attention", "gemm"), 6 * T * L * (2 * D * H * hd + 2 * D * hd));
    EXPECT_DOUBLE_EQ(flops_of(plan, "attention", "attention_"), 14 * T * (S + 1) / 2 * H * hd * L);
    EXPECT_DOUBLE_EQ(flops_of(plan, "head and rest", "gemm"), 6 * T * D * V);
    if (experts > 0) {
      EXPECT_DOUBLE_EQ(flops_of(plan, "experts", "grouped_gemm_"), 6 * T * L * 3 * D * F);
      EXPECT_DOUBLE_EQ(flops_of(plan, "router", "gemm"), 6 * T * L * D * 64);
    } else {
      EXPECT_DOUBLE_EQ(flops_of(plan, "mlp", "gemm"), 6 * T * L * 3 * D * F);
    }
  }
}

// Ranks share the work; only the update and the gradient norm are computed by each rank.
TEST(Plan, FlopsAreIndependentOfTheLayout) {
  const auto flops = [](const ParallelConfig& parallel) {
    RunConfig config = small_config();
    config.parallel = parallel;
    double sum = 0;
    for (const RankPlan& rank : make_plan(resolve(config, {})).ranks)
      for (const auto& [part, kernels] : rank.step)
        for (const auto& [kernel, cost] : kernels)
          if (part != "optimizer" && part != "gradients") sum += cost.flops;
    return sum;
  };
  const double one = flops({1, 1, 1});
  for (const ParallelConfig& parallel : {ParallelConfig{2, 1, 1}, {2, 2, 1}, {4, 1, 1}, {4, 2, 1}, {4, 4, 1}})
    EXPECT_DOUBLE_EQ(flops(parallel), one) << parallel.ranks << " ranks, " << parallel.expert_model_parallel_size;
}

TEST(Plan, ListsKindsOfLayers) {
  RunConfig config = small_config();
  EXPECT_EQ(format_plan(make_plan(resolve(config, {})), 0, std::nullopt).find("Layers\n"), std::string::npos)
      << "all are alike";
  config.model.num_layers = 5;
  config.model.mlp.ffn_hidden_size = 48;
  config.model.moe.moe_layer_freq = "([0]*1+[1]*4)";
  config.model.moe.moe_ffn_hidden_size = 12;
  config.model.attention.window_size = "3,0";
  config.model.attention.window_attn_skip_freq = "4";
  config.model.attention.no_rope_freq = "[0,0,0,1,0]";
  EXPECT_NE(format_plan(make_plan(resolve(config, {})), 0, std::nullopt)
                .find("\nLayers\n"
                      "  0                                  sliding window of 4 tokens, dense, FFN of 48\n"
                      "  1-2, 4                             sliding window of 4 tokens, MoE, experts of 12\n"
                      "  3                                  full attention, no RoPE, MoE, experts of 12\n\nOne step"),
            std::string::npos);
  config.model.attention.no_rope_freq = "none";
  config.model.attention.rope_scaling_type = "yarn";
  config.model.attention.rotary_scaling_factor = 8;
  config.model.attention.window_rope_scaling = false;
  const std::string apart = format_plan(make_plan(resolve(config, {})), 0, std::nullopt);
  EXPECT_NE(
      apart.find("  3                                  full attention, positions stretched 8 times, MoE, experts of 12"
                 "\n\nOne step"),
      std::string::npos);
  EXPECT_NE(apart.find("sliding window of 4 tokens, MoE"), std::string::npos);
}

TEST(Plan, CountsTheAnswersThatARunKeeps) {
  RunConfig config = testing::small_config();
  Plan plan = make_plan(resolve(config, {}));
  EXPECT_EQ(plan.rollouts_disk_bytes(), 0);
  EXPECT_EQ(format_plan(plan, 0, std::nullopt).find("the answers of a step"), std::string::npos);
  plan.rollout_bytes = 1 << 20;
  plan.rollout_files = 10;
  EXPECT_NE(
      format_plan(plan, 0, std::nullopt)
          .find("  the answers of a step about 1.00 MiB if all are long, those of 10 steps 10.0 MiB (keep_rollouts)\n"),
      std::string::npos)
      << format_plan(plan, 0, std::nullopt);
}

}  // namespace
}  // namespace witan
