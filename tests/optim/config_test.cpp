#include "witan/optim/config.h"

#include <gmock/gmock.h>

#include "support/documented.h"
#include "support/message_of.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using ::testing::HasSubstr;

std::string refusal(const std::function<void(OptimizerConfig&)>& change) {
  OptimizerConfig config;
  change(config);
  return test::message_of<ConfigError>([&] { config.validate(); });
}

TEST(OptimizerConfig, HasValidDefaultsAndMegatronKeys) {
  OptimizerConfig config;
  config.validate();
  parse_toml(
      config.fields(),
      "lr = 0.0006\nmin_lr = 0.00006\nlr_decay_style = 'cosine'\nlr_warmup_iters = 1000\nlr_decay_iters = 38000\n"
      "weight_decay = 0.1\nclip_grad = 1.0\noptimizer = 'sgd'\nadam_beta1 = 0.8\nadam_beta2 = 0.9\nadam_eps = 1e-6\n"
      "sgd_momentum = 0.0",
      "test.toml");
  config.validate();
  EXPECT_EQ(config.lr, 6e-4);
  EXPECT_EQ(config.lr_decay_iters, 38000);
  EXPECT_EQ(config.optimizer, "sgd");
  EXPECT_EQ(config.sgd_momentum, 0);
}

TEST(OptimizerConfig, RefusesInvalidSettings) {
  EXPECT_EQ(refusal([](auto& c) { c.min_lr = 1; }), "min_lr = 1 is above lr = 0.001; lower min_lr");
  EXPECT_THAT(refusal([](auto& c) { c.adam_beta1 = 1; }), HasSubstr("adam_beta1 = 1 would never forget"));
  EXPECT_THAT(refusal([](auto& c) { c.adam_beta2 = 1; }), HasSubstr("adam_beta2 = 1"));
  EXPECT_THAT(refusal([](auto& c) { c.sgd_momentum = 1; }), HasSubstr("sgd_momentum = 1"));
  EXPECT_EQ(refusal([](auto& c) { c.lr_decay_iters = 20; }),
            "lr_decay_iters = 20 must be more than lr_warmup_iters = 20, or 0 for train_iters");
  EXPECT_THAT(refusal([](auto& c) { c.lr_warmup_init = 1; }), HasSubstr("lr_warmup_init = 1 is above lr = "));
  EXPECT_THAT(refusal([](auto& c) { c.lr_decay_style = "WSD"; }), HasSubstr("WSD needs lr_wsd_decay_iters"));
  EXPECT_THAT(refusal([](auto& c) {
                c.lr_decay_style = "WSD";
                c.lr_decay_iters = 100;
                c.lr_wsd_decay_iters = 81;
              }),
              HasSubstr("lr_wsd_decay_iters = 81 would begin before the end of the warmup: "
                        "lr_decay_iters - lr_warmup_iters is 80"));
  OptimizerConfig config;
  EXPECT_THROW(set_field(config.fields(), "optimizer", "adamm", "--optimizer"), ConfigError);
  EXPECT_THROW(set_field(config.fields(), "adam_eps", "0", "--adam-eps"), ConfigError);
  EXPECT_THROW(set_field(config.fields(), "clip_grad", "-1", "--clip-grad"), ConfigError);
}

TEST(OptimizerConfig, EveryOptionIsDocumented) {
  EXPECT_EQ(testing::keys_without_row("optimizers.md", OptimizerConfig().fields()), std::vector<std::string>());
}

}  // namespace
}  // namespace witan
