// Padding is no token of any router: neither how long rows are padded nor the layout changes a step.
#include <gtest/gtest.h>

#include <functional>

#include "support/long_form.h"
#include "train/run/run_support.h"
#include "train/step/laid_out.h"

namespace witan {
namespace {

using testing::expect_equal;
using testing::laid_out;
using testing::LaidOut;
using testing::run_engine;
using testing::Trajectory;

constexpr const char* kFsdp = "optim_grads_params";
constexpr int64_t kLength = 16;  // which rows are padded to, or beyond
const int64_t kSteps = testing::steps_of(3, 20);

RunConfig recipe() {
  RunConfig config = testing::divisible_config();
  config.model.num_layers = 2;
  config.model.moe.moe_z_loss_coeff = 1e-3;
  config.data.data_packing = "best_fit";
  config.data.seq_length = kLength;
  return laid_out(config, {});
}

// Row `sample` of the run has two pieces of documents, some of whose tokens are no targets, or one, or nothing at all.
void pad(Batch& batch, int64_t row, int64_t sample, int64_t length) {
  const int64_t real = std::array<int64_t, 6>{16, 9, 0, 13, 3, 6}[static_cast<size_t>(sample) % 6];
  const auto fill = [&](auto& values, int64_t at, auto value) {
    values[static_cast<size_t>(row * length + at)] = value;
  };
  for (int64_t s = 0; s < length; ++s) {
    const bool padding = s >= real;
    fill(batch.sequence_ids, s, padding ? kPadding : static_cast<int32_t>(s >= 5));
    fill(batch.positions, s, static_cast<int32_t>(padding ? s - real : s >= 5 ? s - 5 : s));
    if (padding || s < 2) fill(batch.loss_mask, s, 0.0F);
    if (!padding) continue;
    fill(batch.tokens, s, 0);
    fill(batch.targets, s, 0);
  }
}

// The same rows for any sequence length from kLength on, and whatever the size of a micro-batch.
std::vector<Batch> padded_batches(const RunConfig& config, const Layout& layout, int rank, int64_t step) {
  RunConfig narrow = config;
  narrow.data.seq_length = kLength;
  std::vector<Batch> batches = testing::own_batches(narrow, layout, rank, step);
  const int64_t length = config.data.seq_length, sequences = config.train.micro_batch_size;
  const int64_t own = static_cast<int64_t>(batches.size()) * sequences;
  int64_t sample = step * config.train.global_batch_size + layout.data_rank(rank) * own;
  for (Batch& batch : batches) {
    const auto widen = [&](auto& values) {
      auto wide = values;
      wide.assign(static_cast<size_t>(sequences * length), 0);
      for (int64_t b = 0; b < sequences; ++b)
        std::copy_n(values.begin() + b * kLength, kLength, wide.begin() + b * length);
      values = std::move(wide);
    };
    widen(batch.tokens), widen(batch.targets), widen(batch.positions);
    widen(batch.sequence_ids), widen(batch.loss_mask);
    batch.sequence_length = length;
    for (int64_t row = 0; row < sequences; ++row) pad(batch, row, sample++, length);
    batch.loss_tokens = std::count(batch.loss_mask.begin(), batch.loss_mask.end(), 1.0F);
  }
  return batches;
}

struct Variant {
  const char* name;
  std::function<void(RunConfig&)> change;
};
void PrintTo(const Variant& variant, std::ostream* out) {
  *out << variant.name;
}

std::vector<Variant> variants() {
  return {
      {"MicroBatches", [](RunConfig&) {}},
      {"BiasAndCapacity",
       [](RunConfig& c) {
         c.train.micro_batch_size = 2;
         c.model.moe.moe_router_load_balancing_type = "seq_aux_loss";
         c.model.moe.moe_router_score_function = "sigmoid";
         c.model.moe.moe_router_enable_expert_bias = true;
         c.model.moe.moe_router_bias_update_rate = 0.02;
         c.model.moe.moe_expert_capacity_factor = 0.7;
       }},
      {"AllLossesAndPositions",
       [](RunConfig& c) {
         c.train.micro_batch_size = 2;
         c.model.moe.moe_router_load_balancing_type = "aux_loss,seq_aux_loss,global_aux_loss";
         c.model.moe.moe_aux_loss_coeff = "0.5,0.25,1";
         c.model.moe.moe_expert_capacity_factor = 1;
         c.model.moe.moe_token_drop_policy = "position";
         c.model.recompute_granularity = "full";
       }},
      {"Quantiles",
       [](RunConfig& c) {
         c.train.micro_batch_size = 2;
         c.model.moe.moe_router_load_balancing_type = "quantile_balancing";
       }},
      {"Sinkhorn", [](RunConfig& c) { c.model.moe.moe_router_selection = "sinkhorn"; }},
      {"ExpertChoice",
       [](RunConfig& c) {
         c.train.micro_batch_size = 2;
         c.model.moe.moe_router_selection = "expert_choice";
         c.model.moe.moe_router_pre_softmax = true;
       }},
      {"Hash", [](RunConfig& c) { c.model.moe.moe_router_selection = "hash"; }},
      {"GroupsAndTokensAhead",
       [](RunConfig& c) {
         c.model.mtp_num_layers = 1;
         c.model.moe.moe_router_num_groups = 4;
         c.model.moe.moe_router_group_topk = 2;
       }},
  };
}

class Padding : public ::testing::TestWithParam<Variant> {
 protected:
  static RunConfig config() {
    RunConfig config = recipe();
    GetParam().change(config);
    return config;
  }
};
INSTANTIATE_TEST_SUITE_P(Routers, Padding, ::testing::ValuesIn(variants()),
                         [](const auto& variant) { return variant.param.name; });

TEST_P(Padding, OfAnyLengthTakesTheSameSteps) {
  RunConfig config = Padding::config();
  const Trajectory narrow = run_engine(config, kSteps, padded_batches);
  for (const double loss : narrow.losses) EXPECT_TRUE(std::isfinite(loss));
  config.data.seq_length = 3 * kLength;
  const Trajectory wide = run_engine(config, kSteps, padded_batches);
  expect_equal(narrow, wide, 1e-9, "rows three times as long");
  EXPECT_EQ(narrow.dropped, wide.dropped);
}

TEST_P(Padding, OfAnyLayoutEqualsOneRankInFloat64) {
  const RunConfig config = Padding::config();
  const Trajectory one = run_engine(config, kSteps, padded_batches);
  std::vector<LaidOut> layouts = {{"shard=4,expert=2", kFsdp}, {"context=2"}, {.mesh = "context=4", .comm = "p2p"}};
  if (config.model.mtp_num_layers == 0) {
    layouts.push_back({"pipeline=2"});
    layouts.push_back({"shard=2,context=2,tensor=2,expert=2,expert_tensor=1", kFsdp});
  }
  for (const LaidOut& layout : layouts) {
    const RunConfig several = laid_out(config, layout);
    const Trajectory found = run_engine(several, kSteps, padded_batches);
    expect_equal(one, found, 1e-9, described(layout));
    for (size_t step = 0; step < one.dropped.size(); ++step) EXPECT_NEAR(one.dropped[step], found.dropped[step], 1e-12);
    EXPECT_EQ(found.arena_high_water, make_plan(resolve(several, {})).arena_bytes()) << described(layout);
  }
}

TEST(PaddingOfRouters, DeterministicLayoutsHaveTheSameBits) {
  RunConfig config = recipe();
  config.model.dtype = "float32";
  config.train.micro_batch_size = 2;
  config.model.moe.moe_expert_capacity_factor = 1;
  config.parallel.deterministic = true;
  const Trajectory one = run_engine(config, kSteps, padded_batches);
  const Trajectory several =
      run_engine(laid_out(config, {"shard=2,pipeline=2,expert=2", kFsdp}), kSteps, padded_batches);
  EXPECT_EQ(one.losses, several.losses);
  EXPECT_EQ(one.balances, several.balances);
  EXPECT_EQ(one.zs, several.zs);
  EXPECT_EQ(one.norms, several.norms);
  EXPECT_EQ(one.weights, several.weights);
}

// What moves rows to experts, each in its way, moves none of padding.
TEST(PaddingOfRouters, DispatchersAndBackendsTakeTheSameSteps) {
  const Trajectory one = run_engine(recipe(), kSteps, padded_batches);
  const auto expect_same = [&](const char* what, const std::function<void(MoeConfig&)>& change) {
    RunConfig config = laid_out(recipe(), {"replicate=4,expert=4"});
    change(config.model.moe);
    expect_equal(one, run_engine(config, kSteps, padded_batches), 1e-9, what);
  };
  expect_same("allgather", [](MoeConfig& moe) { moe.moe_token_dispatcher_type = "allgather"; });
  expect_same("block-sparse", [](MoeConfig& moe) { moe.moe_expert_backend = "block_sparse"; });
  expect_same("sequential", [](MoeConfig& moe) { moe.moe_expert_backend = "sequential"; });
  expect_same("bounded pools", [](MoeConfig& moe) { moe.moe_pool_factor = 1; });
  expect_same("bounded sends", [](MoeConfig& moe) { moe.moe_exchange_factor = 1; });
  expect_same("replicas", [](MoeConfig& moe) { moe.moe_replicated_experts = 2; });
}

}  // namespace
}  // namespace witan
