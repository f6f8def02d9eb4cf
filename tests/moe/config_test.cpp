#include "witan/moe/config.h"

#include <gtest/gtest.h>

#include "support/documented.h"
#include "support/message_of.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using test::message_of;

std::string moe_blocks(const std::string& pattern, int64_t num_layers) {
  MoeConfig config;
  config.moe_layer_freq = pattern;
  config.validate(num_layers);
  std::string blocks;
  for (const bool moe : config.moe_layers(num_layers)) blocks += moe ? 'E' : '-';
  return blocks;
}

TEST(MoeConfig, PatternsSelectMoeBlocks) {
  EXPECT_EQ(moe_blocks("1", 4), "EEEE");
  EXPECT_EQ(moe_blocks("2", 5), "E-E-E");
  EXPECT_EQ(moe_blocks("9", 3), "E--");
  EXPECT_EQ(moe_blocks("[0,1,1]", 3), "-EE");
  EXPECT_EQ(moe_blocks("[0, 1, 0]", 3), "-E-");
  EXPECT_EQ(moe_blocks("([0]*1+[1]*4)", 5), "-EEEE");
  const std::string message = test::message_of<ConfigError>([] { moe_blocks("[0]", 1); });
  EXPECT_EQ(message, "moe_layer_freq = [0] makes no layer an MoE layer: set num_experts = 0 for a dense model");
}

TEST(MoeConfig, DenseModelsNeedNoChecks) {
  MoeConfig config;
  config.num_experts = 0;
  config.moe_router_topk = 99;
  config.moe_layer_freq = "nonsense";
  config.validate(2);
  EXPECT_EQ(config.moe_layers(2), std::vector<bool>({false, false}));
}

TEST(MoeConfig, ErrorsNameBadPatterns) {
  for (const std::string pattern : {"0", "-1", "", "two", "1.5", "1 ", "[1,0]", "[]", "[1,0,2]", "[1,0,1", "[1,0,1]x",
                                    "99999999999999999999", "[101]", "[1,,01]", "[,1,0,1]", "[1,0,1,]"}) {
    MoeConfig config;
    config.moe_layer_freq = pattern;
    EXPECT_EQ(message_of<ConfigError>([&] { config.validate(3); }),
              "moe_layer_freq = " + pattern +
                  ": must be a whole number, or a pattern of 0 and 1 for each of the 3 "
                  "layers, as in [1,0]");
  }
}

TEST(MoeConfig, ErrorsExplainImpossibleChoices) {
  MoeConfig config;
  config.num_experts = 4;
  config.moe_router_topk = 5;
  EXPECT_EQ(message_of<ConfigError>([&] { config.validate(1); }), "moe_router_topk = 5 is more than num_experts = 4");
  config.moe_router_topk = 1;
  EXPECT_EQ(message_of<ConfigError>([&] { config.validate(1); }),
            "moe_router_topk = 1 needs moe_router_pre_softmax = true: a softmax over one score is always 1, and the "
            "router would not learn");
  config.moe_router_pre_softmax = true;
  config.validate(1);
}

TEST(MoeConfig, PaddingNeedsACapacity) {
  MoeConfig config;
  config.moe_pad_expert_input_to_capacity = true;
  EXPECT_EQ(message_of<ConfigError>([&] { config.validate(1); }),
            "moe_pad_expert_input_to_capacity = true needs a capacity to pad to: set moe_expert_capacity_factor, as "
            "1.25");
  config.moe_expert_capacity_factor = 0.5;
  config.validate(1);
}

TEST(MoeConfig, PoolFactorsHoldABalancedLoad) {
  MoeConfig config;
  config.moe_pool_factor = 0.5;
  EXPECT_EQ(message_of<ConfigError>([&] { config.validate(1); }),
            "moe_pool_factor = 0.5 has no room for an even load: set 1 or more, as 1.5, or 0 for the worst case");
  config.moe_pool_factor = 1;
  config.validate(1);
  config.moe_token_dispatcher_type = "allgather";
  EXPECT_EQ(message_of<ConfigError>([&] { config.validate(1); }),
            "moe_pool_factor bounds what other ranks send to a rank, but moe_token_dispatcher_type = \"allgather\" "
            "gathers all tokens: set \"alltoall\", or moe_pool_factor = 0");
}

TEST(MoeConfig, ExchangeFactorsHoldABalancedLoad) {
  MoeConfig config;
  config.moe_exchange_factor = 0.5;
  EXPECT_EQ(message_of<ConfigError>([&] { config.validate(1); }),
            "moe_exchange_factor = 0.5 has no room for an even load: set 1 or more, as 1.5, or 0 for exact counts");
  config.moe_exchange_factor = 1;
  config.validate(1);
  config.moe_token_dispatcher_type = "allgather";
  EXPECT_EQ(message_of<ConfigError>([&] { config.validate(1); }),
            "moe_exchange_factor bounds what a rank sends to another, but moe_token_dispatcher_type = \"allgather\" "
            "gathers all tokens: set \"alltoall\", or moe_exchange_factor = 0");
}

TEST(MoeConfig, ReplicasNeedAllToAllAndGroupedProducts) {
  MoeConfig config;
  config.moe_replicated_experts = 2;
  config.validate(1);
  config.moe_token_dispatcher_type = "allgather";
  EXPECT_EQ(
      message_of<ConfigError>([&] { config.validate(1); }),
      "moe_replicated_experts = 2 replicates hot experts on ranks with fewer rows, but moe_token_dispatcher_type = "
      "\"allgather\" sends all tokens to all ranks: set \"alltoall\", or moe_replicated_experts = 0");
  config.moe_token_dispatcher_type = "alltoall";
  config.moe_expert_backend = "block_sparse";
  EXPECT_EQ(message_of<ConfigError>([&] { config.validate(1); }),
            "moe_replicated_experts = 2 computes with copies of other ranks' experts, which moe_expert_backend = "
            "\"block_sparse\" has no product for: set \"grouped\", or moe_replicated_experts = 0");
  config.moe_replicated_experts = 0;
  config.validate(1);
}

TEST(MoeConfig, OverlapNeedsSharedExpertsAndAllToAll) {
  MoeConfig config;
  config.moe_shared_expert_overlap = true;
  EXPECT_EQ(message_of<ConfigError>([&] { config.validate(1); }),
            "moe_shared_expert_overlap = true needs a shared expert to compute while tokens travel: set "
            "moe_shared_expert_intermediate_size");
  config.moe_shared_expert_intermediate_size = 8;
  config.validate(1);
  config.moe_token_dispatcher_type = "allgather";
  EXPECT_EQ(message_of<ConfigError>([&] { config.validate(1); }),
            "moe_shared_expert_overlap = true overlaps with tokens on their way to their experts, but "
            "moe_token_dispatcher_type = \"allgather\" gathers all tokens first: set \"alltoall\", or "
            "moe_shared_expert_overlap = false");
}

// Megatron-LM's get_capacity(tokens * topk, experts, factor).
TEST(MoeConfig, CapacityMatchesMegatron) {
  MoeConfig config;  // 8 experts, top-2
  const auto capacity = [&](double factor, int64_t tokens) {
    config.moe_expert_capacity_factor = factor;
    return config.expert_capacity(tokens);
  };
  EXPECT_EQ(capacity(1, 16), 4);
  EXPECT_EQ(capacity(1, 17), 5);
  EXPECT_EQ(capacity(1.25, 16), 5);
  EXPECT_EQ(capacity(0.01, 16), 1);
  EXPECT_EQ(capacity(1, 0), 0);
  EXPECT_EQ(capacity(1e300, 16), 16) << "at most all tokens";
  EXPECT_EQ(capacity(0, 16), 16) << "dropless";
}

TEST(MoeConfig, LoadBalancingTypesHaveACoefficientAndAName) {
  MoeConfig config;
  config.moe_aux_loss_coeff = "0.25";
  EXPECT_EQ(config.balance_losses().at(0).coefficient, 0.25);
  EXPECT_STREQ(config.balance_losses().at(0).tag(), "load_balancing_loss");
  set_field(config.fields(), "moe_router_load_balancing_type", "seq_aux_loss", "test");
  EXPECT_EQ(config.balance_losses().at(0).coefficient, 0.25);
  EXPECT_STREQ(config.balance_losses().at(0).tag(), "seq_load_balancing_loss");
  for (const char* without : {"none", "quantile_balancing"}) {
    set_field(config.fields(), "moe_router_load_balancing_type", without, "test");
    EXPECT_TRUE(config.balance_losses().empty());
  }
}

TEST(MoeConfig, EachOfSeveralLossesHasACoefficient) {
  using Over = BalanceLoss::Over;
  MoeConfig config;
  set_field(config.fields(), "moe_router_load_balancing_type", "seq_aux_loss,aux_loss", "test");
  set_field(config.fields(), "moe_aux_loss_coeff", "0.001, 0.25", "test");
  const auto losses = config.balance_losses();
  ASSERT_EQ(losses.size(), 2u);
  EXPECT_EQ(losses[0].over, Over::micro_batch);
  EXPECT_EQ(losses[0].coefficient, 0.25);
  EXPECT_EQ(losses[1].over, Over::sequence);
  EXPECT_EQ(losses[1].coefficient, 0.001);
  set_field(config.fields(), "moe_router_load_balancing_type", "global_aux_loss,aux_loss,seq_aux_loss", "test");
  set_field(config.fields(), "moe_aux_loss_coeff", "1,2,3", "test");
  const auto three = config.balance_losses();
  ASSERT_EQ(three.size(), 3u);
  EXPECT_EQ(three[2].over, Over::global_batch);
  EXPECT_EQ(three[2].coefficient, 1);
  EXPECT_STREQ(three[2].tag(), "global_load_balancing_loss");
  set_field(config.fields(), "moe_router_load_balancing_type", "seq_aux_loss,aux_loss", "test");
  for (const char* text : {"0.01", "1,2,3", "1,", "", "x,1", "-0.1,1", "nan,1", "1 1"}) {
    config.moe_aux_loss_coeff = text;
    EXPECT_THROW(config.validate(4), ConfigError) << text;
  }
  config = {};
  parse_toml(config.fields(), "moe_router_load_balancing_type = \"aux_loss\"\nmoe_aux_loss_coeff = 0.125", "old.toml");
  EXPECT_EQ(config.balance_losses().at(0).coefficient, 0.125) << "older files have a number";
}

TEST(MoeConfig, QuantileBalancingHasConditions) {
  MoeConfig config;
  config.moe_router_load_balancing_type = "quantile_balancing";
  EXPECT_NO_THROW(config.validate(4));
  config.moe_router_score_function = "sigmoid";
  config.moe_router_enable_expert_bias = true;
  EXPECT_THROW(config.validate(4), ConfigError) << "two biases";
  config.moe_router_enable_expert_bias = false;
  config.moe_router_topk = config.num_experts;
  EXPECT_THROW(config.validate(4), ConfigError) << "nothing to choose";
}

TEST(MoeConfig, FieldsHaveBounds) {
  MoeConfig config;
  for (const auto& [key, text] :
       std::vector<std::pair<std::string, std::string>>{{"num_experts", "-1"},
                                                        {"num_experts", "65537"},
                                                        {"moe_router_topk", "0"},
                                                        {"moe_ffn_hidden_size", "-1"},
                                                        {"moe_aux_loss_coeff", "-0.1"},
                                                        {"moe_aux_loss_coeff", "0.1,-0.1"},
                                                        {"moe_aux_loss_coeff", "0.1,"},
                                                        {"moe_z_loss_coeff", "-1"},
                                                        {"moe_expert_capacity_factor", "-1"},
                                                        {"moe_pool_factor", "-1"},
                                                        {"moe_exchange_factor", "-1"},
                                                        {"moe_replicated_experts", "-1"},
                                                        {"moe_token_drop_policy", "random"},
                                                        {"moe_router_load_balancing_type", "sinkhorn"},
                                                        {"moe_router_load_balancing_type", "aux_loss,aux_loss"},
                                                        {"moe_router_load_balancing_type", "none,aux_loss"}})
    EXPECT_THROW(set_field(config.fields(), key, text, "test"), ConfigError) << key << " = " << text;
  set_field(config.fields(), "num_experts", "0", "test");
  EXPECT_EQ(config.num_experts, 0);
}

TEST(MoeConfig, EveryOptionHasARowInTheDocumentation) {
  EXPECT_EQ(testing::keys_without_row("moe.md", MoeConfig().fields()), std::vector<std::string>());
}

}  // namespace
}  // namespace witan
