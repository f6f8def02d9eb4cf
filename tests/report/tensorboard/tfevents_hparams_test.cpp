#include "witan/report/tensorboard/tfevents_hparams.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "support/message_of.h"
#include "support/temp_folder.h"
#include "witan/base/error.h"
#include "witan/report/tensorboard/tfevents.h"

namespace witan::tfevents {
namespace {

using test::message_of;
using test::TempFolder;

std::vector<fs::path> files(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder)) found.push_back(entry.path());
  std::ranges::sort(found);
  return found;
}

TEST(TfEventsHparams, AreTensorBoardsOwnBytes) {
  constexpr double kTime = 1730000003.5;
  // Not in the order of their names, as TensorBoard writes the map of a session.
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
  // A run that was renamed, in its own folder.
  const SessionFile alone(folder.path(), {{"run", std::string("c")}}, {});
  EXPECT_EQ(files(folder.path()), std::vector<fs::path>{alone.path()});
}

TEST(TfEventsHparams, AFolderThatCannotBe) {
  const TempFolder folder;
  write_file_atomically(folder / "file", "");
  EXPECT_NE(message_of<IoError>([&] { SessionFile(folder / "file" / "below", {}, {}); }).find("for TensorBoard"),
            std::string::npos);
}

}  // namespace
}  // namespace witan::tfevents
