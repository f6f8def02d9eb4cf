// No layout changes the result of multi-token prediction, and each takes the planned bytes.
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "support/long_form.h"
#include "support/message_of.h"
#include "train/step/layouts/one_rank.h"

namespace witan {
namespace {

using testing::expect_bits_of_one_rank;
using testing::expect_recomputation_changes_no_bit;
using testing::expect_steps_of_one_rank;
using testing::kFsdp;
using testing::laid_out;
using testing::LaidOut;
using testing::run_engine;
using testing::Trajectory;

const int64_t kSteps = testing::steps_of(3, 20);

const std::vector<LaidOut> kLayouts = {{"replicate=2,expert=2"},
                                       {"shard=2,expert=2"},
                                       {"shard=2", "optim_grads"},
                                       {"shard=4,expert=2", kFsdp},
                                       {.mesh = "shard=2", .strategy = kFsdp, .reshard_after_forward = false},
                                       {"context=2,expert=2"},
                                       {"tensor=2,expert=2,expert_tensor=1"},
                                       {.mesh = "tensor=2,expert_tensor=2", .loss_parallel = false},
                                       {"pipeline=2"},
                                       {"pipeline=4"},
                                       {"pipeline=2", "auto", 2},
                                       {"shard=2,pipeline=2,expert=2", kFsdp},
                                       {"context=2,tensor=2,pipeline=2,expert=2,expert_tensor=2"}};

// Documents are separated: targets ahead end with their document.
RunConfig two_modules(bool untied) {
  RunConfig config = testing::divisible_config();
  config.model.vocab_size = 64;
  config.model.untie_embeddings_and_output_weights = untied;
  config.model.mtp_num_layers = 2;
  config.model.mtp_loss_scaling_factor = 0.5;
  config.model.moe.moe_z_loss_coeff = 1e-3;
  config.data.reset_attention_mask = config.data.reset_position_ids = true;
  config.train.global_batch_size = 4;
  return laid_out(config, {});
}

// The losses of one step on rank 0.
std::vector<double> mtp_losses(const RunConfig& config) {
  std::vector<double> losses;
  testing::with_rank_engines(config, [&](Stream&, const Groups& groups, Engine& engine, int rank) {
    const StepResult out = engine.step(testing::own_batches(config, groups.layout(), rank, 0), 1, 0);
    if (rank == 0) losses = out.mtp_losses;
  });
  return losses;
}

class MtpLayouts : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Heads, MtpLayouts, ::testing::Bool(),
                         [](const auto& untied) { return untied.param ? "Untied" : "Tied"; });

TEST_P(MtpLayouts, EqualOneRankInFloat64) {
  const RunConfig config = two_modules(GetParam());
  expect_steps_of_one_rank(config, kLayouts, kSteps);
  const std::vector<double> losses = mtp_losses(config);
  ASSERT_EQ(losses.size(), 2u);
  EXPECT_GT(losses[0], 1);
  EXPECT_NE(losses[0], losses[1]);
  for (const LaidOut& layout : kLayouts) {
    const std::vector<double> others = mtp_losses(laid_out(config, layout));
    for (size_t module = 0; module < losses.size(); ++module)
      EXPECT_NEAR(others[module], losses[module], 1e-9 * losses[module]) << described(layout);
  }
}

TEST_P(MtpLayouts, DenseModelsEqualOneRankToo) {
  RunConfig config = two_modules(GetParam());
  config.model.moe.num_experts = 0;
  const Trajectory one = run_engine(laid_out(config, {}), kSteps);
  RunConfig divided = laid_out(config, {"tensor=2"});
  divided.parallel.sequence_parallel = false;
  testing::expect_equal(one, run_engine(divided, kSteps), 1e-9, "a residual stream that ranks have whole");
}

TEST_P(MtpLayouts, DeterministicLayoutsHaveTheBitsOfOneRank) {
  RunConfig config = two_modules(GetParam());
  config.model.dtype = "float32";
  config.parallel.deterministic = true;
  expect_bits_of_one_rank(
      config, {{"replicate=2,expert=2"}, {"shard=2,expert=2", kFsdp}, {"pipeline=2"}, {"shard=2,pipeline=2"}}, 3);
}

TEST_P(MtpLayouts, RecomputationChangesNoBit) {
  RunConfig config = laid_out(two_modules(GetParam()), {"shard=2,expert=2", kFsdp});
  config.model.dtype = "float32";
  expect_recomputation_changes_no_bit(config, 3);
}

TEST_P(MtpLayouts, TakeThePlannedBytes) {
  for (const LaidOut& layout :
       {LaidOut{""}, LaidOut{"shard=2,expert=2", kFsdp}, LaidOut{"pipeline=2"}, LaidOut{"context=2,tensor=2"}})
    for (const char* granularity : {"none", "full"}) {
      RunConfig config = laid_out(two_modules(GetParam()), layout);
      config.model.dtype = "bfloat16";
      config.model.recompute_granularity = granularity;
      EXPECT_EQ(run_engine(config, 2).arena_high_water, make_plan(resolve(config, {})).arena_bytes())
          << described(layout) << ", " << granularity;
    }
}

TEST(Mtp, RefusesUnsupportedSettings) {
  const auto why = [](auto&& change) {
    RunConfig config = testing::small_config();
    config.model.mtp_num_layers = 1;
    change(config);
    return test::message_of<ConfigError>([&] { config.validate(); });
  };
  EXPECT_EQ(why([](RunConfig& c) { c.model.mtp_num_layers = 12; }),
            "mtp_num_layers = 12 looks further ahead than the 12 tokens of a sequence; set mtp_num_layers to less than "
            "seq_length");
  EXPECT_EQ(why([](RunConfig& c) {
              c.parallel.ranks = c.parallel.pipeline_model_parallel_size = 2;
              c.model.embedding_norm = true;
            }),
            "mtp_num_layers = 1 with pipeline_model_parallel_size = 2: the last stage has a copy of the embedding, but "
            "none of its norm (embedding_norm); set pipeline_model_parallel_size = 1, or leave these out");
  EXPECT_EQ(why([](RunConfig& c) { c.train.record_routes = "routes"; }),
            "record_routes = routes with mtp_num_layers = 1: it knows the model's own layers alone; set "
            "mtp_num_layers = 0");
}

}  // namespace
}  // namespace witan
