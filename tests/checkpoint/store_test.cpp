#include "witan/checkpoint/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "checkpoint/checkpoint_support.h"

namespace witan {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace test;

void put(const fs::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

class Store : public ::testing::Test {
 protected:
  // The step that a run would resume from; -1 for none.
  int64_t latest() {
    warnings_.clear();
    const auto found = latest_checkpoint(folder_.path(), warnings_);
    return found ? found->step : -1;
  }

  TempFolder folder_;
  std::vector<std::string> warnings_;
};

TEST_F(Store, OpensSavedCheckpoints) {
  const Checkpoint checkpoint = open_checkpoint(save_model(folder_.path(), 40, 2));
  EXPECT_EQ(checkpoint.step, 40);
  EXPECT_EQ(checkpoint.scalars.at("consumed_samples"), 320);
  EXPECT_EQ(checkpoint.scalars.at("loss").get<double>(), 0.1);
  EXPECT_EQ(read_extra_file(checkpoint, "config.toml"), "num_layers = 1\n");
  EXPECT_THAT(message_of<CheckpointError>([&] { read_extra_file(checkpoint, "../x"); }), HasSubstr("holds no file"));
  put(checkpoint.folder / "config.toml", "num_layers = 2\n");
  EXPECT_THAT(message_of<CheckpointError>([&] { read_extra_file(checkpoint, "config.toml"); }),
              HasSubstr("config.toml is damaged"));
}

TEST_F(Store, ErrorsNameWhatIsMissing) {
  EXPECT_THAT(message_of<CheckpointError>([&] { open_checkpoint(folder_ / "step-3"); }),
              AllOf(HasSubstr("no complete checkpoint"), HasSubstr("step-3/manifest.json")));
  const fs::path saved = save_model(folder_.path(), 40, 2);
  fs::remove(saved / "shard-00001.safetensors");
  EXPECT_THAT(message_of<CheckpointError>([&] { open_checkpoint(saved); }),
              HasSubstr("shard-00001.safetensors: the manifest names this file, but: No such file"));
}

// Opening a pipe would wait for a writer.
TEST_F(Store, TreatsAPipeAsADamagedManifest) {
  save_model(folder_.path(), 20, 1);
  fs::create_directory(folder_ / "step-30");
  ASSERT_EQ(::mkfifo((folder_ / "step-30/manifest.json").c_str(), 0600), 0);
  EXPECT_THAT(message_of<CheckpointError>([&] { open_checkpoint(folder_ / "step-30"); }),
              AllOf(HasSubstr("no complete checkpoint"), HasSubstr("it is a pipe or a device")));
  EXPECT_EQ(latest(), 20);
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("step 30 is damaged and is skipped")));
}

TEST_F(Store, LatestIsTheNewestCompleteOne) {
  EXPECT_EQ(latest(), -1);
  warnings_.clear();
  EXPECT_FALSE(latest_checkpoint(folder_ / "absent", warnings_).has_value());
  for (const int64_t step : {9, 100, 20}) save_model(folder_.path(), step, 1);
  for (const char* name : {"step-0300", "step-", "step-5x", "step--7", ".tmp-step-500.1", "latest"})
    fs::create_directory(folder_ / name);
  EXPECT_EQ(latest(), 100);
  EXPECT_THAT(warnings_, ElementsAre());
  fs::create_directory(folder_ / "step-200");  // like a copy that was interrupted before the manifest
  EXPECT_EQ(latest(), 100);
  EXPECT_THAT(warnings_,
              ElementsAre(AllOf(HasSubstr("step 200 is damaged and is skipped"), HasSubstr("manifest.json"))));
  fs::remove(folder_ / "step-200");
  fs::rename(folder_ / "step-100", folder_ / "step-200");
  EXPECT_EQ(latest(), 20);
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("step-200 holds step 100: it was renamed")));
}

TEST_F(Store, EveryTruncationIsReportedAndThePreviousOneUsed) {
  save_model(folder_.path(), 1, 2);
  const fs::path saved = save_model(folder_.path(), 2, 2);
  for (const std::string& name : names_in(saved)) {
    const std::string whole = read_file(saved / name);
    for (size_t size = whole.size(); size-- > 0;) {
      fs::resize_file(saved / name, size);
      ASSERT_EQ(latest(), 1) << name << " cut to " << size;
      ASSERT_THAT(warnings_, ElementsAre(HasSubstr(name)));
    }
    put(saved / name, whole);
  }
  EXPECT_EQ(latest(), 2);
}

TEST_F(Store, FlippedBitsAreReportedAndThePreviousOneUsed) {
  save_model(folder_.path(), 1, 2);
  const fs::path saved = save_model(folder_.path(), 2, 2);
  std::mt19937 random(11);
  for (const std::string& name : names_in(saved)) {
    const std::string whole = read_file(saved / name);
    std::fstream file(saved / name, std::ios::in | std::ios::out | std::ios::binary);
    const auto put_at = [&](size_t byte, char value) { file.seekp(static_cast<int64_t>(byte)).put(value).flush(); };
    for (int i = 0; i < 2500; ++i) {  // 10,000 over the four files
      const size_t byte = random() % whole.size();
      const int bit = static_cast<int>(random() % 8);
      put_at(byte, static_cast<char>(whole[byte] ^ (1 << bit)));
      ASSERT_EQ(latest(), 1) << name << ", bit " << bit << " of byte " << byte;
      ASSERT_THAT(warnings_, ElementsAre(HasSubstr(name)));
      put_at(byte, whole[byte]);
    }
  }
  EXPECT_EQ(latest(), 2);
}

TEST_F(Store, KeepLastDeletesOldCheckpoints) {
  for (const int64_t step : {1, 2, 3, 10}) save_model(folder_.path(), step, 1);
  EXPECT_THAT(keep_last(folder_.path(), 2), ElementsAre(folder_ / "step-2", folder_ / "step-1"));
  EXPECT_THAT(names_in(folder_.path()), ElementsAre("step-10", "step-3"));
  EXPECT_THAT(keep_last(folder_.path(), 5), ElementsAre());
  EXPECT_THAT(keep_last(folder_ / "absent", 1), ElementsAre());
  EXPECT_THAT(message_of<ConfigError>([&] { keep_last(folder_.path(), 0); }),
              HasSubstr("keep_last must be at least 1"));
}

// Steps 1 to 6 with different losses; step 5 has none.
TEST_F(Store, KeepsTheBestBesideTheNewest) {
  const std::map<int64_t, double> losses = {{1, 3.0}, {2, 1.0}, {3, 2.0}, {4, 1.0}, {6, 4.0}};
  for (const int64_t step : {1, 2, 3, 4, 5, 6}) {
    Json scalars = Json::object();
    if (const auto loss = losses.find(step); loss != losses.end()) scalars["loss"] = loss->second;
    on_ranks(1, [&](Group& world, Stream& stream) {
      save_checkpoint(world, stream, folder_.path(), {step, model_state(stream, 0, 1, 1), scalars, {}});
    });
  }
  EXPECT_THAT(keep_last(folder_.path(), {2, 3, "loss"}), ElementsAre(folder_ / "step-1"));
  EXPECT_THAT(keep_last(folder_.path(), {1, 1, "loss"}),
              ElementsAre(folder_ / "step-5", folder_ / "step-3", folder_ / "step-2"))
      << "of equal ones the newer is kept";
  EXPECT_THAT(names_in(folder_.path()), ElementsAre("step-4", "step-6"));
  EXPECT_THAT(keep_last(folder_.path(), {1, 5, "other"}), ElementsAre(folder_ / "step-4"));
  EXPECT_THAT(keep_last(folder_.path(), {1, 5, "loss"}), ElementsAre()) << "the last always stays";
}

TEST_F(Store, KeepLastDeletesNothingWhileTheNewestIsDamaged) {
  for (const int64_t step : {1, 2, 3}) save_model(folder_.path(), step, 1);
  std::string bytes = read_file(folder_ / "step-3" / "shard-00000.safetensors");
  bytes.back() ^= 4;
  put(folder_ / "step-3" / "shard-00000.safetensors", bytes);
  EXPECT_THAT(keep_last(folder_.path(), 1), ElementsAre());
  EXPECT_THAT(names_in(folder_.path()), ElementsAre("step-1", "step-2", "step-3"));
}

TEST_F(Store, KeepLastIgnoresDamagedCheckpoints) {
  for (const int64_t step : {1, 2, 3, 4}) save_model(folder_.path(), step, 1);
  fs::remove(folder_ / "step-3" / "manifest.json");
  EXPECT_THAT(keep_last(folder_.path(), 2), ElementsAre(folder_ / "step-1"));
  EXPECT_EQ(latest(), 4);
}

}  // namespace
}  // namespace witan
