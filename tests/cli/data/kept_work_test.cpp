// What the commands that make token shards say of unfinished work.
#include "witan/cli/data/kept_work.h"

#include <gtest/gtest.h>

#include <csignal>

#include "cli/cli_support.h"
#include "witan/base/error.h"

namespace witan::cli {
namespace {

class KeptWorkTest : public ::testing::Test {
 protected:
  std::string said_of_failure() {
    test::Capture err;
    {
      Progress progress(err.file(), {});
      EXPECT_THROW(saying_what_is_kept(progress, folder_ / "web",
                                       []() -> PreparedDataset { throw DataError("a row is damaged"); }),
                   DataError);
    }
    return err.text();
  }

  test::TempFolder folder_;
};

TEST_F(KeptWorkTest, AFailureSaysWhatGoesOn) {
  EXPECT_EQ(said_of_failure(), "") << "nothing is kept";
  test::write_text(folder_ / "web.partial.json", "{}");
  const std::string said = said_of_failure();
  EXPECT_TRUE(test::contains(said, "kept: the tokens up to the last whole piece, in " + (folder_ / "web").string() +
                                       ".partial.*; the same command continues behind it"))
      << said;
}

TEST_F(KeptWorkTest, ASignalSaysWhatGoesOn) {
  const auto stop = [&] {
    Progress progress(stderr, {});
    saying_what_is_kept(progress, folder_ / "web", []() -> PreparedDataset {
      std::raise(SIGINT);
      return {};
    });
  };
  EXPECT_EXIT(stop(), ::testing::ExitedWithCode(130),
              "witan: stopped: whole pieces of the tokens are kept in .*web.partial.*the same command continues");
}

}  // namespace
}  // namespace witan::cli
