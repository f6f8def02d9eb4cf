// Checkpoints of every version of the format must always load and resume (tests/golden/checkpoints).
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <sstream>

#include "cli/cli_support.h"
#include "witan/base/files/file.h"
#include "witan/base/json.h"
#include "witan/base/text.h"
#include "witan/report/events/metrics.h"

namespace witan::test {
namespace {

class OldCheckpoints : public ::testing::TestWithParam<std::string> {
 protected:
  // Paths in the flags refer to the original run, which also started in its own folder.
  OldCheckpoints() {
    fs::copy_file(golden() / "text.txt", folder_ / "text.txt");
    fs::current_path(folder_.path());
  }
  ~OldCheckpoints() override { fs::current_path(before_); }

  static fs::path golden() { return fs::path(WITAN_SOURCE_DIR) / "tests" / "golden" / "checkpoints"; }

  // Resumes a run folder that contains only the checkpoint of step 4, up to step 8.
  void resume() const {
    const fs::path checkpoint = run_ / "checkpoints" / "step-4";
    fs::create_directories(checkpoint);
    // Version 1 differs from version 2 only in its manifest.
    for (const fs::path& from : {golden() / "v2" / "step-4", golden() / GetParam() / "step-4", golden() / GetParam()})
      if (fs::is_directory(from))
        for (const auto& file : fs::directory_iterator(from))
          if (file.is_regular_file())
            fs::copy_file(file.path(), checkpoint / file.path().filename(), fs::copy_options::overwrite_existing);
    std::ifstream flags(golden() / "flags.txt");
    std::vector<std::string> args = {"train",    "--runs-folder", ".", "--run", "old", "--data",
                                     "text.txt", "--train-iters", "8"};
    args.insert(args.end(), std::istream_iterator<std::string>(flags), {});
    const Said said = witan(args);
    ASSERT_EQ(said.code, 0) << said.err;
    EXPECT_TRUE(contains(said.err, "step 4 of 8")) << said.err;
  }

  const fs::path before_ = fs::current_path();
  TempFolder folder_;
  const fs::path run_ = folder_ / "old";
};

// Bits are equal on the machine and with the compiler that computed the expected values; others round differently.
TEST_P(OldCheckpoints, ResumesLikeTheProgramThatWroteIt) {
  constexpr double kOfLoss = 2e-3, kOfNorm = 2e-2;  // relative
  resume();
  std::istringstream expected(
      read_file(golden() / (GetParam() == "v1" ? std::string("v2") : GetParam()) / "expected.txt"));
  const Metrics metrics = read_metrics(run_ / "metrics.jsonl");
  ASSERT_EQ(metrics.steps.size(), 4U);
  for (const StepEvent& event : metrics.steps) {
    int64_t step = 0;
    double loss = 0, norm = 0;
    ASSERT_TRUE(expected >> step >> loss >> norm);
    EXPECT_EQ(event.step, step);
    EXPECT_NEAR(event.loss, loss, kOfLoss * loss) << step;
    EXPECT_NEAR(event.grad_norm, norm, kOfNorm * norm) << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Versions, OldCheckpoints, ::testing::Values("v1", "v2"),
                         [](const auto& one) { return one.param; });

class NewCheckpoints : public OldCheckpoints {};

// A version without a folder could stop loading without notice; make.sh creates its folder.
TEST_P(NewCheckpoints, HaveAFolderForTheirVersion) {
  resume();
  const Json manifest =
      parse_json(read_file(run_ / "checkpoints" / "step-8" / "manifest.json"), "the checkpoint of this program");
  const std::string version = cat("v", manifest.at("version").get<int>());
  const fs::path kept = golden() / version / "step-4" / "manifest.json";
  ASSERT_TRUE(fs::exists(kept)) << "run tests/golden/checkpoints/make.sh WITAN " << version
                                << ", commit its output, and add the version to the values above";
  EXPECT_EQ(parse_json(read_file(kept), kept.string()).at("version"), manifest.at("version"));
}

INSTANTIATE_TEST_SUITE_P(Newest, NewCheckpoints, ::testing::Values("v2"), [](const auto& one) { return one.param; });

}  // namespace
}  // namespace witan::test
