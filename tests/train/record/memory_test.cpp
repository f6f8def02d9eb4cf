#include "witan/train/record/memory.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <tuple>

#include "support/message_of.h"
#include "train/loop/trainer_support.h"
#include "witan/tensor/trace_context.h"

namespace witan {
namespace {

using Json = nlohmann::json;
using test::message_of;
using ::testing::HasSubstr;
using testing::Trainer;

TEST(MemoryFile, MatchesGoldenJson) {
  MemorySnapshot snapshot;
  snapshot.requested = 1024;
  snapshot.tag = MemoryTag::gradients;
  snapshot.reserved = 4096;
  snapshot.high_water = 2560;
  snapshot.largest_free = 512;
  snapshot.live = {0, 0, 0, 2048, 512, 0};
  snapshot.peak = {1, 0, 0, 2048, 512, 0};
  snapshot.place = MemoryPlace(TraceContext{.step = 3, .phase = TraceContext::Phase::optimizer});
  snapshot.blocks = {{512,
                      2048,
                      MemoryTag::activations,
                      DType::bf16,
                      {2, 512},
                      MemoryPlace(TraceContext{3, TraceContext::Phase::backward, 1, "layers.0.mlp", "linear"})},
                     {0, 4, MemoryTag::communication, DType::f32, {1}, {}}};
  EXPECT_EQ(memory_json(1, snapshot),
            R"({"rank":1,"why":"refused","request":{"bytes":1024,"tag":"gradients","step":3,"phase":"optimizer"},)"
            R"("reserved":4096,"high_water":2560,"largest_free":512,)"
            R"("live":{"weights":0,"gradients":0,"optimizer":0,"activations":2048,"communication":512,"workspace":0},)"
            R"("peak":{"weights":1,"gradients":0,"optimizer":0,"activations":2048,"communication":512,"workspace":0},)"
            "\n\"blocks\":[\n"
            R"({"bytes":2048,"offset":512,"tag":"activations","dtype":"bfloat16","shape":[2,512],"step":3,)"
            R"("phase":"backward","micro_batch":1,"module":"layers.0.mlp","op":"linear"},)"
            "\n"
            R"({"bytes":4,"offset":0,"tag":"communication","dtype":"float32","shape":[1]})"
            "\n]}\n");
  snapshot.blocks.clear();
  EXPECT_NO_THROW(std::ignore = Json::parse(memory_json(0, snapshot)));
}

class MemoryOfARun : public testing::Trainer {};

// Rank 1 allocates unplanned memory.
TEST_F(MemoryOfARun, IsWrittenWhenMemoryRunsOut) {
  aids_.before_step = [](int rank, int64_t step, std::vector<Batch>&, Engine& engine) {
    if (rank == 1 && step == 3) engine.stream().empty({int64_t{1} << 28}, DType::f32);
  };
  const std::string said = message_of<OutOfMemoryError>([&] { run(config("a")); });
  EXPECT_THAT(said, HasSubstr("rank 1: out of memory: 1.00 GiB of activations asked for in step 3"));
  EXPECT_THAT(said, HasSubstr("Largest:\n"));
  const fs::path folder = folder_ / "a" / "memory";
  EXPECT_FALSE(fs::exists(folder / "rank-0.json"));
  const Json file = Json::parse(read_file(folder / "rank-1.json"));
  EXPECT_EQ(file["rank"], 1);
  EXPECT_EQ(file["why"], "refused");
  int64_t live = 0, of_blocks = 0;
  for (const auto& [tag, bytes] : file["live"].items()) live += bytes.get<int64_t>();
  std::set<std::string> modules;
  for (const Json& block : file["blocks"]) {
    of_blocks += (block["bytes"].get<int64_t>() + Arena::kAlignment - 1) / Arena::kAlignment * Arena::kAlignment;
    modules.insert(block.value("module", ""));
  }
  EXPECT_EQ(live, of_blocks) << "everything live is listed";
  EXPECT_TRUE(modules.contains("layers.0.moe.experts.up_gate") || modules.size() > 10) << "with parameter names";
  EXPECT_THAT(read_file(folder_ / "a" / "train.log"), HasSubstr("out of memory: 1.00 GiB of activations"));

  aids_ = {};
  RunConfig again = config("a");
  again.train.train_iters = 2;
  run(again);
  EXPECT_FALSE(fs::exists(folder)) << "a successful run has none";
}

std::vector<fs::path> files_of(const fs::path& folder, int rank) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().filename().string().ends_with(cat("-rank-", rank, ".json"))) files.push_back(entry.path());
  return files;
}

// The request is made in step 3, after which a rank may or may not see it in the same step.
TEST_F(Trainer, WritesItsMemoryOnRequest) {
  RunConfig config = this->config("shown");
  config.train.train_iters = 6;
  config.train.sample_tokens = 0;
  aids_.before_step = [&](int rank, int64_t step, std::vector<Batch>&, Engine&) {
    if (rank == 0 && step == 3) request_snapshot(folder_ / "shown");
  };
  run(config);
  for (const int rank : {0, 1}) {
    const std::vector<fs::path> files = files_of(folder_ / "shown" / "memory", rank);
    ASSERT_EQ(files.size(), 1u) << "once";
    const Json shown = Json::parse(read_file(files[0]));
    EXPECT_EQ(files[0].filename(), cat("step-", shown.at("step").get<int64_t>(), "-rank-", rank, ".json"));
    EXPECT_EQ(shown.at("why"), "asked");
    EXPECT_EQ(shown.at("rank"), rank);
    EXPECT_FALSE(shown.contains("request"));
    EXPECT_TRUE(shown.at("step") == 3 || shown.at("step") == 4) << shown.at("step");
    EXPECT_GT(shown.at("live").at("activations"), 0) << "of the current pass";
    int64_t bytes = 0, live = 0;
    for (const Json& block : shown.at("blocks")) bytes += block.at("bytes").get<int64_t>();
    for (const auto& [tag, of_tag] : shown.at("live").items()) live += of_tag.get<int64_t>();
    EXPECT_GT(bytes, 0);
    EXPECT_LE(bytes, live);
    EXPECT_LE(live, shown.at("high_water"));
  }
  const std::string log = read_file(folder_ / "shown" / "train.log");
  EXPECT_NE(log.find("step 4: the memory of each rank is shown in "), std::string::npos) << log;
}

// A request to an earlier start is ignored.
TEST_F(Trainer, IgnoresRequestsToAnEarlierStart) {
  RunConfig config = this->config("old");
  config.train.train_iters = 2;
  config.train.sample_tokens = 0;
  run(config);
  request_snapshot(folder_ / "old");
  config.train.train_iters = 4;
  run(config);
  EXPECT_TRUE(!fs::exists(folder_ / "old" / "memory") || files_of(folder_ / "old" / "memory", 0).empty());
}

}  // namespace
}  // namespace witan
