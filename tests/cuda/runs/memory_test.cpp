// Files of the live memory of runs on GPUs: when memory runs out, and on request while recorded steps are replayed.
#include "witan/train/record/memory.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <set>

#include "support/message_of.h"
#include "train/loop/trainer_support.h"
#include "witan/tensor/cuda.h"

namespace witan::testing {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

class MemoryOfGpuRuns : public Trainer {
 protected:
  void SetUp() override {
    if (cuda::devices() == 0) GTEST_SKIP() << cuda::why_none();
  }

  RunConfig on_gpu(const std::string& run) {
    RunConfig config = this->config(run);
    config.model.hidden_size = 64;
    config.model.mlp.ffn_hidden_size = 96;
    config.data.seq_length = 16;
    config.train.train_iters = 6;
    config.train.sample_tokens = 0;
    config.parallel = {1, 1, 1, /*deterministic=*/true};
    config.parallel.device = "cuda";
    return config;
  }
  std::vector<fs::path> files(const std::string& run) {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(folder_ / run / "memory"))
      if (entry.path().extension() == ".json") found.push_back(entry.path());
    return found;
  }
};

int64_t total_of(const Json& tags) {
  int64_t sum = 0;
  for (const auto& [tag, bytes] : tags.items()) sum += bytes.get<int64_t>();
  return sum;
}

// The request is made before step 4, which is a replay and may or may not answer it.
TEST_F(MemoryOfGpuRuns, IsShownWhenItIsAskedAndChangesNoStep) {
  run(on_gpu("alone"));
  for (const bool recorded : {true, false}) {
    const std::string name = recorded ? "recorded" : "eager";
    SCOPED_TRACE(name);
    RunConfig config = on_gpu(name);
    config.parallel.cuda_graph = recorded;
    aids_.before_step = [&](int, int64_t step, std::vector<Batch>&, Engine&) {
      if (step == 4) request_snapshot(folder_ / name);
    };
    run(config);
    expect_same_steps("alone", name);
    ASSERT_EQ(files(name).size(), 1U);
    const Json shown = Json::parse(read_file(files(name)[0]));
    EXPECT_EQ(shown.at("why"), "asked");
    EXPECT_TRUE(shown.at("step") == 4 || shown.at("step") == 5) << shown.at("step");
    // Before the update the state of training is live; the activations of a replay are not allocated.
    for (const char* tag : {"weights", "gradients", "optimizer"}) EXPECT_GT(shown.at("live").at(tag), 0) << tag;
    EXPECT_GT(shown.at("peak").at("activations"), 0);
    EXPECT_LE(total_of(shown.at("live")), shown.at("high_water"));
    std::set<std::string> modules;
    int64_t bytes = 0;
    for (const Json& block : shown.at("blocks")) {
      bytes += block.at("bytes").get<int64_t>();
      modules.insert(block.value("module", ""));
    }
    EXPECT_LE(bytes, total_of(shown.at("live")));
    EXPECT_GT(modules.size(), 10U) << "blocks have the parameters' names";
  }
}

TEST_F(MemoryOfGpuRuns, IsWrittenWhereItRunsOut) {
  aids_.before_step = [](int, int64_t step, std::vector<Batch>&, Engine& engine) {
    if (step == 3) engine.stream().empty({int64_t{1} << 28}, DType::f32);
  };
  const std::string said = test::message_of<OutOfMemoryError>([&] { run(on_gpu("full")); });
  EXPECT_THAT(said, HasSubstr("1.00 GiB of activations asked for in step 3"));
  const Json file = Json::parse(read_file(folder_ / "full" / "memory" / "rank-0.json"));
  EXPECT_EQ(file.at("why"), "refused");
  EXPECT_EQ(file.at("request").at("bytes"), int64_t{1} << 30);
  EXPECT_GT(file.at("live").at("weights"), 0);
}

}  // namespace
}  // namespace witan::testing
