// Models with parallel residual streams train alike in every layout, take the planned memory, and generate as they
// train.
#include <gmock/gmock.h>

#include "planner/real_run.h"
#include "support/message_of.h"
#include "support/model_variants.h"
#include "train/step/layouts/one_rank.h"
#include "witan/nn/hyper_connection.h"

namespace witan {
namespace {

using testing::expect_steps_of_one_rank;
using testing::kFsdp;
using testing::laid_out;
using testing::LaidOut;
using testing::run_engine;
using testing::Trajectory;

RunConfig streams_recipe() {
  RunConfig config = testing::divisible_config();
  config.model.vocab_size = 64;
  config.train.global_batch_size = 4;
  testing::add_residual_streams(config.model);
  return laid_out(config, {});
}

TEST(ResidualStreams, EveryLayoutEqualsOneRankInFloat64) {
  const RunConfig config = streams_recipe();
  const Trajectory one = expect_steps_of_one_rank(config,
                                                  {{"replicate=2"},
                                                   {"shard=2", kFsdp},
                                                   {"context=2"},
                                                   {"tensor=4,expert_tensor=1"},
                                                   {"pipeline=2"},
                                                   {"shard=2,tensor=2,pipeline=2,expert=2,expert_tensor=1"}},
                                                  3);
  EXPECT_GT(std::ranges::min(one.norms), config.optimizer.clip_grad) << "nothing is clipped: nothing is shown";
}

TEST(ResidualStreams, AreOtherModelsThanASingleStream) {
  RunConfig config = streams_recipe();
  const Trajectory three = run_engine(config, 2);
  config.model.streams = {};
  EXPECT_NE(run_engine(config, 2).losses, three.losses);
}

TEST(ResidualStreams, RecomputedLayersGiveTheSameBits) {
  RunConfig config = streams_recipe();
  const Trajectory kept = run_engine(config, 2);
  for (const char* granularity : {"full", "selective"}) {
    config.model.recompute_granularity = granularity;
    EXPECT_EQ(run_engine(config, 2).losses, kept.losses) << granularity;
  }
}

// In 16 bits the weights of streams stay float32, beside matrices of the same unit.
TEST(ResidualStreams, PlansAreKeptToTheByte) {
  for (const char* dtype : {"float64", "bfloat16"})
    for (const LaidOut& layout :
         {LaidOut{}, LaidOut{"tensor=2,expert=2,expert_tensor=1"}, LaidOut{"shard=2", kFsdp}, LaidOut{"pipeline=2"}}) {
      SCOPED_TRACE(cat(dtype, ", ", described(layout)));
      RunConfig config = streams_recipe();
      config.model.dtype = dtype;
      config = laid_out(config, layout);
      config.train.sample_tokens = config.parallel.model_ranks() == 1 ? 4 : 0;
      testing::expect_kept(config, {.prompt_tokens = config.train.sample_tokens > 0 ? 3 : 0});
    }
}

TEST(ResidualStreams, OptionsThatNeedASingleStreamAreRefused) {
  const auto refusal = [](const std::string& key, const std::string& value) {
    RunConfig config = streams_recipe();
    set_field(config.fields(), key, value, "a test");
    return test::message_of<ConfigError>([&] { config.model.validate(); });
  };
  for (const auto& [key, value] : {std::pair{"skip_connections", "true"},
                                   {"embedding_residual", "true"},
                                   {"mtp_num_layers", "1"},
                                   {"init_method", "torch"}})
    EXPECT_THAT(refusal(key, value), ::testing::AllOf(::testing::HasSubstr("num_residual_streams = 3 with "),
                                                      ::testing::HasSubstr(cat(key, " = ", value)),
                                                      ::testing::HasSubstr("or num_residual_streams = 1")));
}

}  // namespace
}  // namespace witan
