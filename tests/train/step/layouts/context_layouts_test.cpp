// Context-parallel ranks take the steps of one rank.
#include <gmock/gmock.h>

#include "planner/real_run.h"
#include "support/message_of.h"
#include "train/step/run_support.h"
#include "witan/parallel/context_heads.h"

namespace witan {
namespace {

using test::message_of;
using testing::drop;
using testing::expect_equal;
using testing::gpt_run_config;
using testing::run_engine;
using testing::small_config;
using testing::Trajectory;

constexpr int64_t kSteps = 5;

// 32 tokens: each of four ranks holds two chunks of 4.
RunConfig context_config(RunConfig config) {
  config.model.dtype = "float64";
  config.model.attention.num_attention_heads = 4;
  config.model.attention.num_query_groups = 2;
  if (config.model.attention.learned_positions()) config.model.attention.max_position_embeddings = 32;
  config.data.seq_length = 32;
  config.train.micro_batch_size = 2;
  config.train.global_batch_size = 8;
  return config;
}

struct Case {
  const char* name;
  int ranks, context, expert;
  bool distributed = false;
  const char* comm = "auto";
};
// 2 and 4 context-parallel ranks, alone and with other axes; experts are divided over ranks of both kinds.
const std::vector<Case> kLayouts = {{"2", 2, 2, 1},
                                    {"2, which divide experts too", 2, 2, 2},
                                    {"4", 4, 4, 1},
                                    {"4, which divide experts by pairs", 4, 4, 2},
                                    {"2 of 4", 4, 2, 1},
                                    {"2 of 4, all of which divide experts and the optimizer", 4, 2, 4, true},
                                    {"2 of 4, optimizer divided", 4, 2, 2, true}};

void divide(RunConfig& config, const Case& layout) {
  config.parallel = {layout.ranks, config.model.moe.num_experts > 0 ? layout.expert : 1, 1};
  config.parallel.context_parallel_size = layout.context;
  config.parallel.use_distributed_optimizer = layout.distributed;
  config.parallel.cp_comm_type = layout.comm;
}

// The same layouts, each with ring attention (p2p) and, if the ranks divide the heads, with exchanged heads (a2a).
std::vector<Case> in_both_ways(const std::vector<Case>& layouts, const RunConfig& config) {
  std::vector<Case> both;
  for (const Case& layout : layouts) {
    both.push_back(layout);
    both.back().comm = "p2p";
    RunConfig divided = config;
    divide(divided, layout);
    if (!ContextHeads(divided.model, divided.parallel).divide(layout.context)) continue;
    both.push_back(layout);
    both.back().comm = "a2a";
  }
  return both;
}

void expect_equals_one_rank(const RunConfig& config, const std::vector<Case>& layouts) {
  const Trajectory one = run_engine(config, kSteps);
  for (const Case& layout : in_both_ways(layouts, config)) {
    RunConfig divided = config;
    divide(divided, layout);
    expect_equal(one, run_engine(divided, kSteps), 1e-9, cat(layout.name, ", ", layout.comm));
  }
}

TEST(ContextLayouts, ExpertsEqualOneRankInFloat64) {
  RunConfig config = context_config(small_config());
  config.model.moe.moe_z_loss_coeff = 1e-2;
  expect_equals_one_rank(config, kLayouts);
}

TEST(ContextLayouts, DenseModelsEqualOneRankInFloat64) {
  RunConfig config = context_config(small_config());
  config.model.moe.num_experts = 0;
  expect_equals_one_rank(config, {kLayouts[0], kLayouts[2], kLayouts[6]});
}

// Variants of blocks are tested in one layout of each kind.
TEST(ContextLayouts, ModelVariantsEqualOneRankInFloat64) {
  const std::vector<std::pair<const char*, std::function<void(RunConfig&)>>> variants = {
      {"documents",
       [](RunConfig& c) {
         c.data.reset_attention_mask = true;
         c.data.reset_position_ids = true;
       }},
      {"dropout", drop},
      {"dropout, selective recompute",
       [](RunConfig& c) {
         drop(c);
         c.model.recompute_granularity = "selective";
       }},
      {"dropout, documents, full recompute",
       [](RunConfig& c) {
         drop(c);
         c.data.reset_attention_mask = true;
         c.model.recompute_granularity = "full";
       }},
      {"top-1, softmax before the choice, every second block",
       [](RunConfig& c) {
         c.model.moe.moe_router_topk = 1;
         c.model.moe.moe_router_pre_softmax = true;
         c.model.moe.moe_layer_freq = "2";
       }},
      {"shared experts, selective recompute",
       [](RunConfig& c) {
         c.model.moe.moe_shared_expert_intermediate_size = 20;
         c.model.recompute_granularity = "selective";
       }},
      {"learned positions, biases, dropout, dense", [](RunConfig& c) { c = context_config(gpt_run_config()); }},
      {"an odd width and odd chunks",
       [](RunConfig& c) {
         c.data.seq_length = 24;
         c.model.hidden_size = 30;
         c.model.attention.num_attention_heads = 3;
         c.model.attention.num_query_groups = 1;
         c.model.moe.num_experts = 6;
       }},
  };
  for (const auto& [name, change] : variants) {
    SCOPED_TRACE(name);
    RunConfig config = context_config(small_config());
    change(config);
    expect_equals_one_rank(config, {kLayouts[3], kLayouts[6]});
  }
}

// Capacities cover the whole micro-batch, whichever ranks have its tokens.
TEST(ContextLayouts, AnExpertsCapacityCoversTheWholeMicroBatch) {
  for (const char* policy : {"probs", "position"}) {
    RunConfig config = context_config(small_config());
    config.model.vocab_size = 62;
    config.model.moe.moe_expert_capacity_factor = 0.75;
    config.model.moe.moe_token_drop_policy = policy;
    config.model.recompute_granularity = "full";
    const Trajectory one = run_engine(config, kSteps);
    for (const double share : one.dropped) EXPECT_GT(share, 0) << "no token was dropped, so the test proves nothing";
    RunConfig with_tensor = config;
    divide(with_tensor, {"", 4, 2, 2});
    with_tensor.parallel.tensor_model_parallel_size = 2;
    with_tensor.parallel.sequence_parallel = true;
    std::vector<RunConfig> several = {with_tensor};
    for (const Case& layout : {kLayouts[2], kLayouts[3], kLayouts[5]}) divide(several.emplace_back(config), layout);
    for (const RunConfig& divided : several) {
      const Trajectory four = run_engine(divided, kSteps);
      expect_equal(one, four, 1e-9, policy);
      EXPECT_EQ(one.dropped, four.dropped);
      witan::testing::expect_kept(divided, {.evaluated = 2});
    }
  }
}

// Runs of one layout have the same bits on any number of threads; they differ from those of one rank.
TEST(ContextLayouts, DeterministicRunsOfALayoutRepeatBitwise) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    RunConfig config = context_config(small_config());
    config.model.dtype = dtype;
    drop(config);
    for (const Case& layout : in_both_ways({kLayouts[5]}, config)) {
      divide(config, layout);
      config.parallel.deterministic = true;
      testing::expect_repeats(config, kSteps);
    }
  }
}

// Here matrices and the residual stream are sharded too.
TEST(ContextLayouts, TensorRanksOfADividedSequenceEqualOneRankInFloat64) {
  for (const bool dense : {true, false}) {
    RunConfig config = context_config(small_config());
    config.model.vocab_size = 62;
    drop(config);
    if (dense) config.model.moe.num_experts = 0;
    for (const Case& layout : in_both_ways({{"", 4, 2, 2}}, config)) {
      RunConfig divided = config;
      divide(divided, layout);
      divided.parallel.tensor_model_parallel_size = 2;
      divided.parallel.sequence_parallel = true;
      expect_equal(run_engine(config, kSteps), run_engine(divided, kSteps), 1e-9, dense ? "dense" : "experts");
    }
  }
}

TEST(ContextLayouts, StateChecksPass) {
  RunConfig config = context_config(small_config());
  config.train.check_states = true;
  divide(config, kLayouts[6]);
  EXPECT_EQ(run_engine(config, 3).losses.size(), 3u);
}

TEST(ContextLayouts, PlansMatchTheRanks) {
  for (const Case& layout : in_both_ways(kLayouts, context_config(small_config()))) {
    RunConfig config = context_config(small_config());
    divide(config, layout);
    EXPECT_EQ(run_engine(config, 2).arena_high_water, make_plan(resolve(config, {})).arena_bytes()) << layout.name;
  }
}

// The purpose of context parallelism: a rank's activations shrink with its share of the tokens. With exchanged heads a
// rank keeps attention's output twice, by heads and by positions, and shared keys are stored on each rank.
TEST(ContextLayouts, ActivationsShrinkWithTheShareOfASequence) {
  RunConfig config = context_config(small_config());
  config.model.moe.num_experts = 0;
  config.data.seq_length = 4096;
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = 1;
  const auto activations = [&](int ranks, const char* comm) {
    divide(config, {"", ranks, ranks, 1, false, comm});
    return static_cast<double>(make_plan(resolve(config, {})).ranks[0].tags.at("activations"));
  };
  const double whole = activations(1, "p2p");
  for (const int ranks : {2, 4, 8}) EXPECT_NEAR(activations(ranks, "p2p") * ranks / whole, 1, 0.1) << ranks;
  for (const int ranks : {2, 4}) EXPECT_NEAR(activations(ranks, "a2a") * ranks / whole, 1.1, 0.1) << ranks;
}

TEST(ContextLayouts, RefusalsOfIndivisibleSizesNameTheNearest) {
  const auto refusal = [](const std::function<void(RunConfig&)>& change) {
    RunConfig config = context_config(small_config());
    divide(config, kLayouts[2]);
    change(config);
    return message_of<ConfigError>([&] { config.validate(); });
  };
  EXPECT_EQ(refusal([](RunConfig& c) { c.data.seq_length = 12; }),
            "context_parallel_size = 4: seq_length = 12 cannot be split into 8 equal chunks, two per rank; set "
            "context_parallel_size to 3 or 6, the nearest that work");
  EXPECT_EQ(refusal([](RunConfig& c) {
              drop(c);
              c.data.seq_length = 48;
              c.parallel.cp_comm_type = "p2p";
            }),
            "context_parallel_size = 4: attention_dropout = 0.2 draws masks in groups of 4, which a chunk of 6 tokens "
            "would split; the nearest seq_length that works is 64");
}

// A rank that has heads has all chunks, of any length.
TEST(ContextLayouts, ExchangedHeadsDropInChunksOfAnyLength) {
  RunConfig config = context_config(small_config());
  drop(config);
  config.data.seq_length = 24;
  const Trajectory one = run_engine(config, kSteps);
  divide(config, kLayouts[2]);
  expect_equal(one, run_engine(config, kSteps), 1e-9, "4, of 6 tokens each");
}

TEST(ContextLayouts, IndivisibleHeadsAreRefusedOrUseTheRing) {
  RunConfig config = context_config(small_config());
  divide(config, kLayouts[2]);
  EXPECT_EQ(resolve(config, {})->parallel.cp_comm_type, "a2a");
  config.model.attention.num_attention_heads = 6;
  config.model.hidden_size = 36;
  EXPECT_EQ(resolve(config, {})->parallel.cp_comm_type, "p2p");
  config.parallel.cp_comm_type = "a2a";
  EXPECT_EQ(message_of<ConfigError>([&] { config.validate(); }),
            "context_parallel_size = 4 with cp_comm_type = a2a: each rank attends with an equal share of the heads, "
            "and of the query groups or of one of them, which 6 heads in 2 query groups do not allow; set cp_comm_type "
            "= p2p, or set context_parallel_size to 2 or 6, the nearest that work");
  config.model.attention.num_query_groups = 3;  // a rank's heads would belong to two groups
  config.parallel.context_parallel_size = config.parallel.ranks = 2;
  EXPECT_THAT(message_of<ConfigError>([&] { config.validate(); }),
              ::testing::HasSubstr("6 heads in 3 query groups do not allow"));
}

}  // namespace
}  // namespace witan
