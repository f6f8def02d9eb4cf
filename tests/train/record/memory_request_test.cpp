#include "witan/train/record/memory_request.h"

#include <nlohmann/json.hpp>

#include "train/loop/trainer_support.h"

namespace witan {
namespace {

using Json = nlohmann::json;
using testing::Trainer;

std::vector<fs::path> files_of(const fs::path& folder, int rank) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().filename().string().ends_with(cat("-rank-", rank, ".json"))) files.push_back(entry.path());
  return files;
}

// Asked for in step 3, when a rank may or may not have looked in it already.
TEST_F(Trainer, ShowsItsMemoryWhenItIsAsked) {
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
    EXPECT_GT(shown.at("live").at("activations"), 0) << "of the pass that is under way";
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

// An earlier start's request is nobody's any more.
TEST_F(Trainer, DoesNotAnswerWhatAnEarlierStartWasAsked) {
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
