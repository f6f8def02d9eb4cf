// Tests on a CPU what does not need a GPU; tests/cuda/runs compares recorded steps with eager ones bit by bit.
#include "witan/generate/recorded_steps.h"

#include "support/module.h"

namespace witan {
namespace {

class RecordedStepsOnMeta : public ::testing::Test {
 protected:
  static ModelConfig config() {
    ModelConfig config;
    config.num_layers = 1;
    config.hidden_size = 16;
    config.vocab_size = 50;
    config.make_vocab_size_divisible_by = 64;
    config.mlp.ffn_hidden_size = 12;
    return config;
  }

  testing::Rank rank_;
  testing::Alone alone_;
  Stream gpu_{{Device::Kind::meta, 0, Device::Kind::cuda}, Arena::meta(), rank_.pool};
};

TEST_F(RecordedStepsOnMeta, ArePossibleOnGpusOnly) {
  EXPECT_TRUE(RecordedSteps::possible(gpu_, config(), {}, false));
  EXPECT_FALSE(RecordedSteps::possible(rank_.stream, config(), {}, false));
  ModelConfig sequential = config();
  sequential.moe.moe_grouped_gemm = false;
  EXPECT_FALSE(RecordedSteps::possible(gpu_, sequential, {}, false));
  gpu_.time_kernels();
  EXPECT_FALSE(RecordedSteps::possible(gpu_, config(), {}, false)) << "timing kernels waits for them";
}

// Steps with fewer texts write to the same memory.
TEST_F(RecordedStepsOnMeta, KeepLogitsForAllTextsInConstantMemory) {
  Transformer model(gpu_, config(), 1, alone_);
  const auto states = model.make_states(gpu_, {4, 10});
  RecordedSteps steps(gpu_, model, states, 4, false);
  const int64_t held = gpu_.arena().live();
  const std::vector<int32_t> tokens = {1, 2, 3, 4};
  const auto step = [&](size_t texts, int64_t past) {
    std::vector<kernels::CacheRun> runs;
    for (size_t i = 0; i < texts; ++i) runs.push_back({static_cast<int64_t>(i), past, 1});
    return steps.logits(runs, std::span(tokens).first(texts));
  };
  EXPECT_EQ(step(4, 0).shape(), Shape({4, 64}));
  for (int64_t past = 1; past < 10; ++past) EXPECT_EQ(step(3, past).shape(), Shape({3, 64}));
  EXPECT_EQ(gpu_.arena().live(), held);
}

}  // namespace
}  // namespace witan
