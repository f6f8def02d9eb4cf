// The loss of an untrained model: published runs of width 512 start at ln V + 0.10. Normalised rows of width D are
// multiplied by a head of N(0, std^2), so that logits are N(0, D std^2); their log-sum-exp is ln V + D std^2 / 2, and
// the target's logit is 0 on average.
#include <gtest/gtest.h>

#include <cmath>

#include "support/rank.h"
#include "train/step/run_support.h"

namespace witan {
namespace {

TEST(InitialLoss, MatchesPublishedRuns) {
  RunConfig config = testing::small_config();
  config.model.num_layers = 1;
  config.model.hidden_size = 512;
  config.model.vocab_size = 2000;
  config.model.untie_embeddings_and_output_weights = true;
  config.model.mlp.ffn_hidden_size = 128;
  config.model.moe.num_experts = 0;
  config.train.micro_batch_size = 4;
  config.train.global_batch_size = 4;
  config.data.seq_length = 128;
  config.validate();
  testing::Rank rank(1, int64_t{1} << 28);
  const Groups groups = make_meta_groups(Layout(config.parallel, 1, 0), 0);
  Engine engine(rank.stream, groups, resolve(config, {}));
  const double expected = std::log(2000.0) + 512 * 0.02 * 0.02 / 2;
  EXPECT_NEAR(expected, std::log(2000.0) + 0.10, 0.005);
  // 440 targets with logits of standard deviation 0.45: three standard errors of the mean are 0.064.
  EXPECT_NEAR(engine.evaluate({testing::random_batch(config, 0)}).loss(), expected, 0.06);
}

}  // namespace
}  // namespace witan
