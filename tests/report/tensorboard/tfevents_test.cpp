#include "witan/report/tensorboard/tfevents.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "support/message_of.h"
#include "support/temp_folder.h"
#include "witan/base/error.h"

namespace witan::tfevents {
namespace {

using test::message_of;
using test::TempFolder;

const fs::path kGolden = fs::path(WITAN_SOURCE_DIR) / "tests/golden/report/events.tfevents";

// Reads records like TensorBoard's reader: up to the first torn one.
std::vector<std::string> records(std::string_view bytes) {
  std::vector<std::string> found;
  while (bytes.size() >= 12) {
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    if (bytes.size() < 16 || length > bytes.size() - 16) break;
    const std::string record(bytes.substr(0, 16 + length));
    if (frame(record.substr(12, length)) != record) break;
    found.push_back(record.substr(12, length));
    bytes.remove_prefix(record.size());
  }
  return found;
}

// RFC 3720, appendix B.4.
TEST(Crc32c, KnownAnswers) {
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43U);
  std::string ascending(32, '\0');
  std::iota(ascending.begin(), ascending.end(), '\0');
  EXPECT_EQ(crc32c(ascending), 0x46DD794EU);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);
  EXPECT_EQ(crc32c(""), 0U);
}

TEST(TfEvents, MatchTensorBoardByteForByte) {
  const Histogram load = histogram_of_counts("expert-load/layer 1", {3, 2, 2});
  const std::string bytes = frame(version_event(1730000000.25)) + frame(start_event(1730000000.25, 301)) +
                            frame(summary_event(1730000001.5, 301, {{"lm loss", 2.5}, {"num-zeros", 0}}, {load})) +
                            frame(summary_event(1730000002.5, 0, {{std::string(200, 'x'), -1e-30}}, {}));
  EXPECT_EQ(bytes, read_file(kGolden));
}

TEST(TfEvents, EmptyBucketsAtTheEndsDoNotStretchTheOthers) {
  const Histogram load = histogram_of_counts("load", {0, 2, 0, 1, 0});
  EXPECT_EQ(load.min, 0.5);
  EXPECT_EQ(load.max, 3.5);
  EXPECT_EQ(load.num, 3);
  EXPECT_EQ(load.sum, 5);
  EXPECT_EQ(load.sum_squares, 11);
  EXPECT_EQ(load.limits, (std::vector<double>{0.5, 1.5, 2.5, 3.5, 4.5}));
  EXPECT_EQ(load.counts, (std::vector<double>{0, 2, 0, 1, 0}));
}

TEST(TfEvents, ReadWholeRecordsOfTornFiles) {
  const std::string golden = read_file(kGolden);
  ASSERT_EQ(records(golden).size(), 4u);
  size_t whole = 0;
  for (size_t size = 0; size < golden.size(); ++size) {
    const size_t found = records(std::string_view(golden).substr(0, size)).size();
    EXPECT_TRUE(found == whole || found == whole + 1) << size;
    whole = found;
  }
  EXPECT_EQ(whole, 3u);
}

TEST(TfEvents, EveryWriterHasItsOwnFile) {
  const TempFolder folder;
  const fs::path below = folder / "a" / "b";
  Writer first(below, 1), second(below, 11);
  EXPECT_NE(first.path(), second.path());
  EXPECT_TRUE(first.path().filename().string().starts_with("events.out.tfevents."));
  first.add(5, {{"lm loss", 1}});
  // Nothing is buffered: records are in the file while the writer lives.
  ASSERT_EQ(records(read_file(first.path())).size(), 3u);
  const auto begun = records(read_file(second.path()));
  ASSERT_EQ(begun.size(), 2u);
  EXPECT_NE(begun[0].find("brain.Event:2"), std::string::npos);
  EXPECT_EQ(begun[1].substr(9), std::string("\x10\x0B\x3A\x02\x08\x01"));  // step 11; session_log {START}
}

TEST(TfEvents, RefuseInvalidFolders) {
  const TempFolder folder;
  write_file_atomically(folder / "file", "");
  EXPECT_NE(message_of<IoError>([&] { Writer(folder / "file" / "below", 1); }).find("for TensorBoard"),
            std::string::npos);
}

using test::message_of;
using test::TempFolder;

std::vector<fs::path> files(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder)) found.push_back(entry.path());
  std::ranges::sort(found);
  return found;
}

TEST(TfEventsHparams, MatchTensorBoardByteForByte) {
  constexpr double kTime = 1730000003.5;
  // Not sorted by name, unlike the map of a session that TensorBoard writes.
  const std::vector<Hyperparameter> parameters = {
      {"train_iters", 1000.0},
      {.name = "lr", .value = 0.0, .differs = true},
      {.name = "fp8", .value = false, .differs = true},
      {"dtype", std::string("bfloat16"), {"bfloat16", "float32"}},
      {"data", std::string()},
  };
  const std::string bytes =
      frame(version_event(1730000000.25)) + frame(text_event(kTime, 301, "configuration", "```toml\nlr = 0.5\n```\n")) +
      frame(experiment_event(kTime, parameters, {"lm loss", "bits-per-byte"})) +
      frame(session_start_event(kTime, parameters)) + frame(session_end_event(kTime, SessionStatus::failure));
  EXPECT_EQ(bytes, read_file(fs::path(WITAN_SOURCE_DIR) / "tests/golden/report/configuration.tfevents"));
}

TEST(TfEventsHparams, AFolderHasOneSession) {
  const TempFolder folder;
  const fs::path below = folder / "a" / "b";
  Writer writer(below, 1);
  SessionFile first(below, {{"lr", 0.5}}, {});
  first.end(SessionStatus::failure);
  SessionFile second(below, {{"lr", 0.25}}, {});
  ASSERT_EQ(files(below), (std::vector<fs::path>{second.path(), writer.path()})) << "before the others";
  EXPECT_EQ(read_file(second.path()).find("_hparams_/session_end_info"), std::string::npos);
  second.end(SessionStatus::success);
  EXPECT_NE(read_file(second.path()).find("_hparams_/session_end_info"), std::string::npos);
}

TEST(TfEventsHparams, RunsThatShareAFolderKeepTheirSessions) {
  const TempFolder folder;
  const auto of_run = [&](const std::string& name) {
    return SessionFile(folder.path(), {{"lr", 0.5}, {"run", name}}, {}, name);
  };
  const fs::path short_name = of_run("a").path(), other = of_run("ab").path(), replaced = of_run("b").path();
  SessionFile resumed = of_run("b");
  resumed.end(SessionStatus::success);
  EXPECT_EQ(files(folder.path()), (std::vector<fs::path>{short_name, other, resumed.path()}));
  EXPECT_FALSE(fs::exists(replaced));
  EXPECT_NE(read_file(resumed.path()).find("_hparams_/session_end_info"), std::string::npos);
  // A run whose folder was renamed.
  const SessionFile alone(folder.path(), {{"run", std::string("c")}}, {});
  EXPECT_EQ(files(folder.path()), std::vector<fs::path>{alone.path()});
}

TEST(TfEventsHparams, RefuseInvalidFolders) {
  const TempFolder folder;
  write_file_atomically(folder / "file", "");
  EXPECT_NE(message_of<IoError>([&] { SessionFile(folder / "file" / "below", {}, {}); }).find("for TensorBoard"),
            std::string::npos);
}

}  // namespace
}  // namespace witan::tfevents
