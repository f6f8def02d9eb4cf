// Checks the bytes that a step sends by axis and operation: real runs send exactly what was planned, and plans contain
// what the mathematics of each axis requires.
#include <gtest/gtest.h>

#include "planner/real_run.h"
#include "witan/model/counts.h"
#include "witan/parallel/mesh_shorthand.h"

namespace witan {
namespace {

using testing::count_real_run;
using testing::counts_of;
using testing::RankCounts;
using testing::small_config;

constexpr int64_t kLayers = 4, kWidth = 128, kFeatures = 256, kWords = 512, kLength = 16, kExperts = 8, kChosen = 2;
constexpr int64_t kGroups = 2, kHeadDim = 32;  // query groups

// Every size of a parameter is a multiple of 512 bytes, so that no buffer is padded.
RunConfig dense_config() {
  RunConfig config = small_config();
  config.model.num_layers = kLayers;
  config.model.hidden_size = kWidth;
  config.model.vocab_size = kWords;
  config.model.untie_embeddings_and_output_weights = true;
  config.model.attention.num_attention_heads = 4;
  config.model.attention.num_query_groups = kGroups;
  config.model.mlp.ffn_hidden_size = kFeatures;
  config.model.moe.num_experts = 0;
  config.model.recompute_granularity = "none";
  config.data.seq_length = kLength;
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = 4;
  config.train.sample_tokens = 0;
  return config;
}

RunConfig on_mesh(RunConfig config, const std::string& mesh, const std::string& strategy = "auto") {
  config.parallel.mesh = mesh;
  config.parallel.ranks = 0;
  config.parallel.expert_model_parallel_size = 0;
  config.parallel.data_parallel_sharding_strategy = strategy;
  expand_mesh(config.parallel, {});
  if (config.parallel.expert_model_parallel_size == 0) config.parallel.expert_model_parallel_size = 1;
  return config;
}

RunConfig moe_config() {
  RunConfig config = dense_config();
  config.model.moe.num_experts = kExperts;
  config.model.moe.moe_router_topk = kChosen;
  return config;
}

RunConfig with_sequence_parallel(RunConfig config) {
  config.parallel.sequence_parallel = true;
  return config;
}

double sent(const RunConfig& config, const std::string& axis, const std::string& operation, size_t rank = 0) {
  const Plan plan = make_plan(resolve(config, {}));
  const SentBytes& all = plan.ranks[rank].sent;
  const auto group = all.find(axis);
  if (group == all.end()) return 0;
  const auto found = group->second.find(operation);
  return found == group->second.end() ? 0 : found->second;
}

// Losses, counts of tokens and expert assignments, and sums of squares are sent too.
constexpr double kBookkeeping = 12e3;

void expect_about(double found, double formula) {
  EXPECT_GE(found, formula);
  EXPECT_LE(found, formula + kBookkeeping);
}

constexpr double kFloat = 4, kMicroBatches = 4;
double stream_bytes() {  // bytes of a micro-batch's residual stream
  return kFloat * kLength * kWidth;
}
double parameter_bytes(const RunConfig& config) {
  return kFloat * static_cast<double>(count_parameters(config.model).exact);
}

struct Case {
  const char* mesh;
  bool experts = false;
  const char* strategy = "auto";
  void (*change)(RunConfig&) = [](RunConfig&) {};
};

void expect_kept(const Case& c) {
  RunConfig config = on_mesh(c.experts ? moe_config() : dense_config(), c.mesh, c.strategy);
  config.parallel.sequence_parallel = config.parallel.tensor_model_parallel_size > 1;
  c.change(config);
  config.validate();
  SCOPED_TRACE(cat(c.mesh, ", ", c.strategy));
  const Plan plan = make_plan(resolve(config, {}));
  const std::vector<RankCounts> real = count_real_run(config, plan);
  for (const RankPlan& rank : plan.ranks) {
    const RankCounts promised = counts_of(rank), found = real[static_cast<size_t>(rank.rank)];
    EXPECT_FALSE(found.sent.empty()) << "rank " << rank.rank;
    EXPECT_EQ(promised.sent, found.sent) << "rank " << rank.rank;
    EXPECT_EQ(promised.tags, found.tags) << "rank " << rank.rank;
    EXPECT_EQ(promised.arena_bytes, found.arena_bytes) << "rank " << rank.rank;
  }
}

TEST(SentBytes, MatchThePlanOnEveryAxis) {
  const auto keep_values = [](RunConfig& config) { config.parallel.reshard_after_forward = false; };
  const auto whole_stream = [](RunConfig& config) { config.parallel.sequence_parallel = false; };
  const auto whole_logits = [](RunConfig& config) { config.parallel.loss_parallel = false; };
  const auto by_sequences = [](RunConfig& config) {
    config.model.moe.moe_router_load_balancing_type = "seq_aux_loss";
    config.train.micro_batch_size = 2;
  };
  const auto ring = [](RunConfig& config) { config.parallel.cp_comm_type = "p2p"; };
  const auto one_group = [](RunConfig& config) { config.model.attention.num_query_groups = 1; };
  const auto interleaved = [](RunConfig& config) { config.parallel.num_virtual_stages_per_pipeline_rank = 2; };
  for (const Case& c : std::vector<Case>{{"replicate=4"},
                                         {"shard=4"},
                                         {"shard=4", true},
                                         {"replicate=2,shard=2"},
                                         {"shard=4", false, "optim_grads"},
                                         {"shard=4", false, "optim_grads_params"},
                                         {"shard=4", false, "optim_grads_params", keep_values},
                                         {"shard=4,expert=2", true, "optim_grads_params"},
                                         {"tensor=2"},
                                         {"tensor=2", false, "auto", whole_stream},
                                         {"tensor=2", false, "auto", whole_logits},
                                         {"replicate=4,expert=4", true},
                                         {"tensor=2,replicate=2,expert=2,expert_tensor=2", true},
                                         {"context=4"},
                                         {"context=4", false, "auto", ring},
                                         {"context=4", false, "auto", one_group},
                                         {"context=2,expert=2", true},
                                         {"context=2,expert=2", true, "auto", by_sequences},
                                         {"context=2,tensor=2,expert=2,expert_tensor=1", true, "auto", by_sequences},
                                         {"pipeline=4"},
                                         {"pipeline=2", false, "auto", interleaved},
                                         {"pipeline=2,tensor=2,shard=2,expert=2,expert_tensor=1", true},
                                         {"pipeline=2,shard=2", false, "optim_grads_params"},
                                         {"context=2,shard=2", false, "optim_grads"}})
    expect_kept(c);
}

TEST(SentBytes, ReplicasReduceEachGradientOnce) {
  const RunConfig config = on_mesh(dense_config(), "replicate=4");
  expect_about(sent(config, "replicate", "all_reduce"), 2 * 3.0 / 4 * parameter_bytes(config));
}

TEST(SentBytes, OwnersReduceScatterGradientsAndGatherValues) {
  const RunConfig config = on_mesh(dense_config(), "shard=4");
  EXPECT_EQ(sent(config, "shard", "reduce_scatter_uneven"), 3.0 / 4 * parameter_bytes(config));
  expect_about(sent(config, "shard", "all_gather_uneven"), 3.0 / 4 * parameter_bytes(config));
}

// Each micro-batch reduce-scatters gradients and gathers values; those of all blocks but the last are gathered a second
// time after they were freed. Values that are kept are gathered once for all micro-batches.
TEST(SentBytes, ShardedParametersAreSentForEveryPass) {
  RunConfig config = on_mesh(dense_config(), "shard=4", "optim_grads_params");
  config.train.global_batch_size = 12;
  const double all = parameter_bytes(config), passes = 12 / 4;
  const double block = (all - kFloat * (2 * kWords * kWidth + kWidth)) / kLayers;
  EXPECT_EQ(sent(config, "shard", "reduce_scatter_uneven"), passes * 3 / 4 * all);
  expect_about(sent(config, "shard", "all_gather_uneven"), passes * 3 / 4 * (all + (kLayers - 1) * block));
  config.parallel.reshard_after_forward = false;
  expect_about(sent(config, "shard", "all_gather_uneven"), 3.0 / 4 * all);
}

// A block has two tensor-parallel layers, each of which sums over the tensor axis in its forward and in its backward;
// so do the embedding's forward and the head's backward.
TEST(SentBytes, TensorParallelRanksReduceTwicePerBlockAndPass) {
  const RunConfig config = on_mesh(dense_config(), "tensor=2");
  const double sums = kMicroBatches * (4 * kLayers + 2);
  expect_about(sent(config, "tensor", "all_reduce"), 2 * 1.0 / 2 * sums * stream_bytes());
}

// With sequence parallelism each sum becomes a gather before the layer and a reduce-scatter after it. The gathered
// tokens are not stored: each layer of a block gathers them again for its backward.
// tokens are not stored: each layer of a block gathers them again for its backward.
TEST(SentBytes, SequenceParallelRanksGatherAndScatterInstead) {
  const RunConfig config = with_sequence_parallel(on_mesh(dense_config(), "tensor=2"));
  const double scatters = kMicroBatches * (4 * kLayers + 2), gathers = scatters + kMicroBatches * 2 * kLayers;
  EXPECT_EQ(sent(config, "tensor", "reduce_scatter"), 1.0 / 2 * scatters * stream_bytes());
  expect_about(sent(config, "tensor", "all_gather"), 1.0 / 2 * gathers * stream_bytes());
}

// Tokens are sent to their experts and back, and so are their gradients, along with routing weights on the way there
// and their gradients on the way back.
TEST(SentBytes, DispatchedRowsAreSentFourTimes) {
  const RunConfig config = on_mesh(moe_config(), "replicate=4,expert=4");
  const double rows = kMicroBatches / 4 * kLayers * kChosen * kLength;
  expect_about(sent(config, "expert", "all_to_all"), 3.0 / 4 * kFloat * rows * (4 * kWidth + 2));
}

// Eight ranks on four hosts. A token with four of eight experts crosses the network once for each other host that it
// visits, not once per expert: with fixed capacities four times, for the tokens that visit a host if experts are drawn
// at random, and for all tokens at most. Routing weights go with them there and back, and their indices there.
TEST(SentBytes, DispatchSendsARowToEachHostOnce) {
  RunConfig config = on_mesh(moe_config(), "replicate=8,expert=8");
  config.train.global_batch_size = 8;
  config.model.moe.moe_router_topk = 4;
  config.parallel.hierarchical_expert_parallel_size = 2;
  config.model.moe.moe_exchange_factor = 1;
  const double copies = std::ceil(kLength * (1 - 6.0 / 8 * 5 / 7 * 4 / 6 * 3 / 5));
  EXPECT_EQ(sent(config, "experts between hosts", "all_to_all_equal"),
            kLayers * 3 * copies * kFloat * (4 * kWidth + 2 * 4 + 4));
  config.parallel.hierarchical_expert_parallel_size = 0;
  const double straight = sent(config, "expert", "all_to_all_equal");
  EXPECT_GT(straight, kLayers * 7.0 / 8 * 4 * kLength * kFloat * 4 * kWidth)
      << "each rank receives the rows of its experts";
}

// Besides a micro-batch's sums and counts, those of each sequence are sent: probabilities in float32, counts in int64.
TEST(SentBytes, RanksThatShareSequencesReduceLoadsPerSequence) {
  constexpr double kSequences = 2, kBatches = 2, kLong = 8;
  RunConfig config = on_mesh(moe_config(), "context=4");
  config.train.micro_batch_size = static_cast<int64_t>(kSequences);
  const double together = sent(config, "context", "all_reduce");
  config.model.moe.moe_router_load_balancing_type = "seq_aux_loss";
  EXPECT_EQ(sent(config, "context", "all_reduce") - together,
            kLayers * kBatches * 2 * 3.0 / 4 * kExperts * ((kSequences - 1) * kFloat + kSequences * kLong));
}

// Keys and values pass all other ranks in the forward and again in the backward, there with their accumulated
// gradients.
TEST(SentBytes, KeysAndValuesPassAroundTheRing) {
  RunConfig config = on_mesh(dense_config(), "context=4");
  config.parallel.cp_comm_type = "p2p";
  const double block = kFloat * kLength / 4 * 2 * kGroups * kHeadDim;
  EXPECT_EQ(sent(config, "context", "send"), kMicroBatches * kLayers * (3 + 3 + 3) * block);
}

// Each other rank gets the queries of its heads with the keys and values that they attend to, and returns the outputs;
// the backward goes the other way.
TEST(SentBytes, HeadsAreExchangedInBothDirections) {
  const RunConfig config = on_mesh(dense_config(), "context=4");
  const auto heads = static_cast<double>(config.model.attention.num_attention_heads);
  const double of_rank = 2 * heads / 4 * kHeadDim + 2 * std::max(kGroups / 4.0, 1.0) * kHeadDim;
  EXPECT_EQ(sent(config, "context", "all_to_all_equal"),
            2 * kMicroBatches * kLayers * kFloat * kLength / 4 * 3 * of_rank);
}

// Every stage but the last sends its output forward, and every stage but the first sends its input's gradient back.
TEST(SentBytes, StagesSendActivationsForwardAndGradientsBack) {
  const RunConfig config = on_mesh(dense_config(), "pipeline=4");
  for (const size_t stage : {0u, 1u, 2u, 3u})
    EXPECT_EQ(sent(config, "pipeline", "send", stage),
              kMicroBatches * stream_bytes() * (stage == 0 || stage == 3 ? 1 : 2))
        << "stage " << stage;
  RunConfig interleaved = on_mesh(dense_config(), "pipeline=2");
  interleaved.parallel.num_virtual_stages_per_pipeline_rank = 2;
  for (const size_t stage : {0u, 1u})  // four chunks, three transfers between them
    EXPECT_EQ(sent(interleaved, "pipeline", "send", stage), kMicroBatches * stream_bytes() * 3) << "stage " << stage;
}

}  // namespace
}  // namespace witan
