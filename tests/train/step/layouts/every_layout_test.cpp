// No layout changes the result: whole models in float64 take the steps of one rank on every axis, on every pair of
// axes, and on 8 ranks with mixed axes.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "support/long_form.h"
#include "support/model_variants.h"
#include "train/step/layouts/laid_out.h"
#include "train/step/run_support.h"

namespace witan {
namespace {

using testing::kFsdp;
using testing::laid_out;
using testing::LaidOut;
using testing::run_engine;
using testing::Trajectory;

// The second step depends on an update, and the third on the optimizer's state.
const int64_t kSteps = testing::steps_of(3, 20);
constexpr const char* kGradients = "optim_grads";

// Expert parallelism reuses the ranks of other axes: alone it shards experts over replicas.
const std::vector<LaidOut> kOfOneAxis = {
    {"replicate=2"},
    {"replicate=4"},
    {"shard=2"},
    {"shard=4"},
    {"shard=2", kGradients},
    {"shard=4", kGradients},
    {"shard=2", kFsdp},
    {"shard=4", kFsdp},
    {"context=2"},
    {"context=4"},
    {.mesh = "context=2", .comm = "p2p"},  // otherwise they divide the heads
    {.mesh = "context=4", .comm = "p2p"},
    {"tensor=2,expert_tensor=1"},
    {"tensor=4,expert_tensor=1"},
    {"pipeline=2"},
    {"pipeline=4"},
    {"pipeline=2", "auto", 2},
    {"replicate=2,expert=2"},
    {"replicate=4,expert=4"},
    {"replicate=2,expert_tensor=2"},
    {"replicate=4,expert_tensor=4"},
};

const std::vector<LaidOut> kOfTwoAxes = {
    {"replicate=2,shard=2"},
    {"replicate=2,shard=2", kFsdp},
    {"replicate=2,context=2"},
    {"replicate=2,tensor=2,expert_tensor=1"},
    {"replicate=2,pipeline=2"},
    {"replicate=4,expert=2"},
    {"replicate=4,expert_tensor=2"},
    {"shard=2,context=2"},
    {"shard=2,context=2", kFsdp},
    {.mesh = "shard=2,context=2", .strategy = kFsdp, .comm = "p2p"},
    {"shard=2,tensor=2,expert_tensor=1"},
    {"shard=2,tensor=2,expert_tensor=1", kFsdp},
    {"shard=2,pipeline=2"},
    {"shard=2,pipeline=2", kFsdp},
    {"shard=4,expert=2"},
    {"shard=4,expert=2", kFsdp},
    {"shard=4,expert_tensor=2"},
    {"shard=4,expert_tensor=2", kFsdp},
    {"context=2,tensor=2,expert_tensor=1"},
    {.mesh = "context=2,tensor=2,expert_tensor=1", .comm = "p2p"},
    {"context=2,pipeline=2"},
    {.mesh = "context=2,pipeline=2", .comm = "p2p"},
    {"context=4,expert=2"},
    {"context=2,expert_tensor=2"},
    {"tensor=2,pipeline=2,expert_tensor=1"},
    {"tensor=4,expert=2,expert_tensor=1"},
    {"tensor=2,expert_tensor=2"},
    {"replicate=2,pipeline=2,expert=2"},
    {"replicate=2,pipeline=2,expert_tensor=2"},
    {"replicate=4,expert=2,expert_tensor=2"},
};

const std::vector<LaidOut> kOfEightRanks = {
    {"replicate=2,context=2,tensor=2"},
    {"replicate=2,context=2,tensor=2,expert=4,expert_tensor=1"},
    {"replicate=2,context=2,tensor=2,expert=1,expert_tensor=4"},
    {"replicate=2,tensor=2,pipeline=2,expert=2,expert_tensor=1"},
    {"replicate=2,context=2,pipeline=2,expert=4"},
    {"replicate=4,tensor=2,expert=2,expert_tensor=2"},
    {"context=2,tensor=4,expert_tensor=1"},
    {"context=4,tensor=2,expert=2,expert_tensor=1"},
    {"context=2,pipeline=4,expert=2"},
    {"tensor=2,pipeline=4,expert_tensor=1"},
    {"context=2,tensor=2,pipeline=2,expert=2,expert_tensor=2"},
    // with distributed optimizers
    {"replicate=2,shard=2,tensor=2"},
    {"replicate=2,shard=2,context=2,expert=2"},
    {"shard=2,context=2,tensor=2,expert=2,expert_tensor=1"},
    {"shard=2,context=2,pipeline=2,expert=2"},
    {"shard=2,tensor=2,pipeline=2,expert=2,expert_tensor=1"},
    // and sharded gradients and values, FSDP and HSDP
    {"shard=4,tensor=2,expert=2,expert_tensor=2", kFsdp},
    {"shard=4,context=2,expert=4", kFsdp},
    {"shard=2,context=2,tensor=2,expert=2,expert_tensor=1", kFsdp},
    {"replicate=2,shard=2,tensor=2", kFsdp},
    {"replicate=2,shard=2,context=2,expert=4", kFsdp},
    {.mesh = "replicate=2,shard=2,tensor=2,expert=2", .strategy = kFsdp, .reshard_after_forward = false},
    {"shard=2,context=2,pipeline=2,expert=2", kFsdp},
    {"shard=2,tensor=2,pipeline=2,expert=2,expert_tensor=1", kFsdp, 2},
    {"replicate=2,shard=2,pipeline=2,expert=4", kFsdp},
    // interleaved stages; complete logits on every tensor-parallel rank
    {"replicate=2,tensor=2,pipeline=2,expert_tensor=1", "auto", 2},
    {"shard=2,context=2,pipeline=2,expert=2", "auto", 2},
    {.mesh = "replicate=2,context=2,tensor=2,expert=2,expert_tensor=1", .loss_parallel = false},
    // keys and values that pass around a ring
    {.mesh = "context=4,tensor=2,expert=2,expert_tensor=1", .comm = "p2p"},
    {.mesh = "context=2,tensor=2,pipeline=2,expert=2,expert_tensor=2", .comm = "p2p"},
    {.mesh = "shard=2,context=2,tensor=2,expert=2,expert_tensor=1", .strategy = kFsdp, .comm = "p2p"},
    {.mesh = "shard=2,context=2,pipeline=2,expert=2", .chunks = 2, .comm = "p2p"},
};

// The default recipe, as deep and as wide as the axes require. Every step is clipped.
RunConfig recipe() {
  RunConfig config = testing::divisible_config();
  config.model.vocab_size = 64;
  config.model.moe.moe_z_loss_coeff = 1e-3;
  config.train.global_batch_size = 4;
  config.log.log_activations = 1;
  return laid_out(config, {});
}

RunConfig dense_twin() {
  RunConfig config = recipe();
  config.model.moe.num_experts = 0;
  return laid_out(config, {});
}

// Sizes that axes need not divide are odd, and sizes that they divide have odd parts. Two rows of the embedding are
// padding.
RunConfig odd_sizes() {
  RunConfig config = recipe();
  config.model.num_layers = 5;
  config.model.hidden_size = 27;
  config.model.vocab_size = 67;
  config.model.make_vocab_size_divisible_by = 23;
  config.model.mlp.ffn_hidden_size = 4 * 7;
  config.model.attention.num_attention_heads = 12;
  config.model.attention.kv_channels = 6;
  config.model.moe.num_experts = 12;
  config.model.moe.moe_router_topk = 3;
  config.model.moe.moe_shared_expert_intermediate_size = 4 * 5;
  config.data.seq_length = 24;
  return config;
}

// A dense layer, then MoE layers with their own width of experts. Windows of 6 tokens, which end within and extend
// beyond chunks of sequences, are in all but every second layer, which has another rotary base and no scaling. One
// layer has no rotary positions, and values are wider than queries and keys.
RunConfig mixed_layers() {
  RunConfig config = recipe();
  config.model.moe.moe_layer_freq = "([0]*1+[1]*3)";
  config.model.moe.moe_ffn_hidden_size = 16;
  config.model.attention.window_size = "5,0";
  config.model.attention.window_attn_skip_freq = "2";
  config.model.attention.no_rope_freq = "[0,0,0,1]";
  config.model.attention.rope_scaling_type = "yarn";
  config.model.attention.rotary_scaling_factor = 4;
  config.model.attention.original_max_position_embeddings = 8;
  config.model.attention.window_rotary_base = 100;
  config.model.attention.window_rope_scaling = false;
  config.model.attention.v_head_dim = 6;
  return config;
}

// OLMoE's attention: norms of the full width, which tensor-parallel ranks divide, effective clamps, and biases in all
// projections.
RunConfig full_width_norms() {
  RunConfig config = recipe();
  config.model.attention.qk_layernorm = config.model.attention.qk_layernorm_full_width = true;
  config.model.attention.clip_qkv = 1.2;
  config.model.attention.add_attention_bias = true;
  config.model.norm_placement = "post";
  config.model.embedding_multiplier = 2;
  config.model.residual_multiplier = 0.5;
  return config;
}

// Qwen3's norms of heads, gpt-oss's sinks with windows, Qwen2's biases, Gemma 3's norms on both sides of each half.
RunConfig head_norms_and_sinks() {
  RunConfig config = mixed_layers();
  config.model.norm_placement = "both";
  config.model.attention.qk_layernorm = config.model.attention.add_qkv_bias = config.model.add_mlp_bias = true;
  config.model.attention.softmax_type = "learnable";
  return config;
}

// Gemma 4's, in layers of which the first two are dense alone.
RunConfig gemma4() {
  RunConfig config = recipe();
  testing::add_gemma4_features(config.model, "5,0");
  config.model.moe.moe_layer_freq = "([0]*2+[1]*2)";
  config.model.moe.moe_ffn_hidden_size = 16;
  return config;
}

// Without experts two layouts may be the same.
std::string keys_of(ParallelConfig parallel) {
  std::string keys;
  for (const Field& field : parallel.fields()) keys += field.text() + " ";
  return keys;
}

void expect_clipped_steps_of_one_rank(const RunConfig& config, const std::vector<LaidOut>& layouts,
                                      int64_t steps = kSteps) {
  const Trajectory one = run_engine(config, steps);
  EXPECT_GT(std::ranges::min(one.norms), config.optimizer.clip_grad)
      << "no step is clipped, so the test proves nothing";
  std::set<std::string> done;
  for (const LaidOut& layout : layouts) {
    const RunConfig several = laid_out(config, layout);
    if (done.insert(keys_of(several.parallel)).second)
      testing::expect_equal(one, run_engine(several, steps), 1e-9, described(layout));
  }
}

struct Model {
  const char* name;
  RunConfig (*config)();
};
void PrintTo(const Model& model, std::ostream* out) {
  *out << model.name;
}
class EveryLayout : public ::testing::TestWithParam<Model> {};
INSTANTIATE_TEST_SUITE_P(Models, EveryLayout,
                         ::testing::Values(Model{"Recipe", recipe}, Model{"DenseTwin", dense_twin},
                                           Model{"OddSizes", odd_sizes}),
                         [](const auto& model) { return model.param.name; });

TEST_P(EveryLayout, OfOneAxisEqualsOneRankInFloat64) {
  expect_clipped_steps_of_one_rank(GetParam().config(), kOfOneAxis);
}

TEST_P(EveryLayout, OfTwoAxesEqualsOneRankInFloat64) {
  expect_clipped_steps_of_one_rank(GetParam().config(), kOfTwoAxes);
}

TEST_P(EveryLayout, OfEightRanksEqualsOneRankInFloat64) {
  expect_clipped_steps_of_one_rank(GetParam().config(), kOfEightRanks);
}

// Masks, documents and recomputation with three axes and experts.
TEST(MixedLayouts, PositionDependentFeaturesEqualOneRankInFloat64) {
  for (const char* granularity : {"selective", "full"}) {
    RunConfig config = recipe();
    testing::drop(config);
    config.data.reset_attention_mask = true;
    config.data.reset_position_ids = true;
    config.model.recompute_granularity = granularity;
    SCOPED_TRACE(granularity);
    expect_clipped_steps_of_one_rank(
        config,
        {{"context=2,tensor=2,pipeline=2,expert=2,expert_tensor=1"},
         {"shard=2,context=2,tensor=2,expert=4,expert_tensor=1"},
         {"shard=2,context=2,tensor=2,expert=4,expert_tensor=1", kFsdp},
         {"shard=2,context=2,pipeline=2,expert=2", "auto", 2},
         {.mesh = "context=2,tensor=2,pipeline=2,expert=2,expert_tensor=1", .comm = "p2p"},
         {.mesh = "shard=2,context=2,tensor=2,expert=4,expert_tensor=1", .strategy = kFsdp, .comm = "p2p"}},
        3);
  }
}

TEST(MixedLayouts, DifferingLayersEqualOneRankInFloat64) {
  expect_clipped_steps_of_one_rank(mixed_layers(),
                                   {{"shard=4"},
                                    {"shard=2", kFsdp},
                                    {"context=4"},
                                    {.mesh = "context=4", .comm = "p2p"},
                                    {"tensor=4,expert_tensor=1"},
                                    {"tensor=2,expert_tensor=2"},
                                    {"pipeline=4"},
                                    {"pipeline=2", "auto", 2},
                                    {"replicate=4,expert=4"},
                                    {"context=2,tensor=2,pipeline=2,expert=2,expert_tensor=2"},
                                    {"shard=2,context=2,tensor=2,expert=2,expert_tensor=1", kFsdp},
                                    {"shard=2,tensor=2,pipeline=2,expert=2,expert_tensor=1", kFsdp, 2}});
}

const std::vector<LaidOut> kOfAttentions = {
    {"shard=4"},
    {"shard=2", kFsdp},
    {"context=4"},
    {.mesh = "context=4", .comm = "p2p"},
    {"tensor=2,expert_tensor=1"},
    {"tensor=4,expert_tensor=1"},
    {"pipeline=2", "auto", 2},
    {"replicate=4,expert=4"},
    {"context=2,tensor=2,pipeline=2,expert=2,expert_tensor=2"},
    {"shard=2,context=2,tensor=2,expert=2,expert_tensor=1", kFsdp},
    {"shard=2,tensor=2,pipeline=2,expert=2,expert_tensor=1", kFsdp, 2},
};

TEST(MixedLayouts, NormsOfTheFullWidthEqualOneRankInFloat64) {
  expect_clipped_steps_of_one_rank(full_width_norms(), kOfAttentions);
}

TEST(MixedLayouts, NormsOfHeadsBiasesAndSinksEqualOneRankInFloat64) {
  expect_clipped_steps_of_one_rank(head_norms_and_sinks(), kOfAttentions);
}

TEST(MixedLayouts, HeadsOfTwoSizesAndParallelMlpsEqualOneRankInFloat64) {
  expect_clipped_steps_of_one_rank(gemma4(), kOfAttentions);
}

const std::vector<LaidOut> kOfSharedGroups = {{"context=2,tensor=4,expert=2,expert_tensor=1"},
                                              {"context=4,expert=2"},
                                              {.mesh = "context=2,tensor=4,expert=2,expert_tensor=1", .comm = "p2p"}};

// If ranks share a group, its keys are gathered after a norm of the full width and before one of heads.
void expect_shared_groups(RunConfig config) {
  config.model.attention.num_query_groups = 2;
  expect_clipped_steps_of_one_rank(config, kOfSharedGroups, 3);
  config.model.recompute_granularity = "full";
  expect_clipped_steps_of_one_rank(config, kOfSharedGroups, 3);
}

TEST(MixedLayouts, NormsAndSinksOfSharedGroupsEqualOneRankInFloat64) {
  expect_shared_groups(full_width_norms());
  expect_shared_groups(head_norms_and_sinks());
}

TEST(MixedLayouts, ValuesFromSharedKeysEqualOneRankInFloat64) {
  expect_shared_groups(gemma4());
}

// A dense model's tensor axis need not divide the residual stream, but weights of heads are sharded nevertheless.
void expect_whole_stream(RunConfig config) {
  config.model.moe.num_experts = 0;
  config.model.moe.moe_layer_freq = "1";
  config.model.moe.moe_ffn_hidden_size = 0;
  RunConfig whole_stream = laid_out(config, {"tensor=2"});
  whole_stream.parallel.sequence_parallel = false;
  testing::expect_equal(run_engine(laid_out(config, {}), 3), run_engine(whole_stream, 3), 1e-9, "a whole stream");
}

TEST(MixedLayouts, NormsAndSinksWithAnUndividedStreamEqualOneRankInFloat64) {
  expect_whole_stream(full_width_norms());
  expect_whole_stream(head_norms_and_sinks());
  expect_whole_stream(gemma4());
}

// Tensor-parallel ranks that share a group gather the channels of its keys and values.
TEST(MixedLayouts, DifferingLayersWithDocumentsAndMasksEqualOneRankInFloat64) {
  for (const char* granularity : {"selective", "full"}) {
    RunConfig config = mixed_layers();
    testing::drop(config);
    config.data.reset_attention_mask = config.data.reset_position_ids = true;
    config.model.attention.num_query_groups = 2;
    config.model.recompute_granularity = granularity;
    SCOPED_TRACE(granularity);
    expect_clipped_steps_of_one_rank(config,
                                     {{"context=2,tensor=4,expert=2,expert_tensor=1"},
                                      {.mesh = "context=2,tensor=4,expert=2,expert_tensor=1", .comm = "p2p"},
                                      {"shard=2,context=2,pipeline=2,expert=2", "auto", 2},
                                      {"shard=2,context=2,tensor=2,expert=4,expert_tensor=1", kFsdp}},
                                     3);
  }
}

}  // namespace
}  // namespace witan
