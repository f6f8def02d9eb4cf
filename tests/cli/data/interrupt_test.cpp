// Effects of Ctrl-C and other signals on commands of `witan data`.
#include "witan/cli/data/interrupt.h"

#include <gtest/gtest.h>

#include <csignal>

#include "cli/cli_support.h"
#include "witan/base/error.h"

namespace witan::cli {
namespace {

TEST(InterruptNoteTest, NamesKeptWorkAndEndsTheProcess) {
  const auto stop_by = [](int signal) {
    const InterruptNote note("all rows are kept; the same command continues");
    std::raise(signal);
  };
  EXPECT_EXIT(stop_by(SIGINT), ::testing::ExitedWithCode(130),
              "witan: stopped: all rows are kept; the same command continues\n");
  EXPECT_EXIT(stop_by(SIGTERM), ::testing::ExitedWithCode(75), "all rows are kept");
  EXPECT_EXIT(stop_by(SIGHUP), ::testing::ExitedWithCode(75), "all rows are kept");
}

TEST(InterruptNoteTest, TheLastOneAnswersBeforeEarlierOnes) {
  const auto stop = [](bool inside) {
    const InterruptNote outer("the first part is kept");
    {
      const InterruptNote inner("the second part is kept");
      if (inside) std::raise(SIGINT);
    }
    std::raise(SIGINT);
  };
  EXPECT_EXIT(stop(true), ::testing::ExitedWithCode(130), "stopped: the second part");
  EXPECT_EXIT(stop(false), ::testing::ExitedWithCode(130), "stopped: the first part");
}

TEST(InterruptNoteTest, WithoutANoteASignalEndsTheProcessAsUsual) {
  const auto stop = [] {
    { const InterruptNote note("nothing"); }
    std::raise(SIGTERM);
  };
  EXPECT_EXIT(stop(), ::testing::KilledBySignal(SIGTERM), "");
}

TEST(InterruptNoteTest, KeepsIgnoredSignalsIgnored) {
  const auto ignore = [] {
    std::signal(SIGHUP, SIG_IGN);
    const InterruptNote note("nothing");
    std::raise(SIGHUP);
    std::_Exit(7);
  };
  EXPECT_EXIT(ignore(), ::testing::ExitedWithCode(7), "");
}

TEST(InterruptNoteTest, MayEndAtTheNextCheckAndAtTheSecondSignalAtOnce) {
  {
    const InterruptNote note("nothing was written", InterruptNote::Ends::at_check);
    EXPECT_NO_THROW(note.check());
    std::raise(SIGINT);
    try {
      note.check();
      ADD_FAILURE() << "it goes on";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::interrupted);
      EXPECT_STREQ(error.what(), "stopped: nothing was written");
    }
  }
  const auto twice = [] {
    const InterruptNote note("nothing was written", InterruptNote::Ends::at_check);
    std::raise(SIGTERM);
    std::raise(SIGINT);
  };
  EXPECT_EXIT(twice(), ::testing::ExitedWithCode(130), "stopped: nothing was written");
}

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

TEST_F(KeptWorkTest, FailuresSayHowToContinue) {
  EXPECT_EQ(said_of_failure(), "") << "nothing is kept";
  test::write_text(folder_ / "web.partial.json", "{}");
  const std::string said = said_of_failure();
  EXPECT_TRUE(test::contains(said, "kept: the tokens up to the last complete piece, in " + (folder_ / "web").string() +
                                       ".partial.*; the same command continues after it"))
      << said;
}

TEST_F(KeptWorkTest, SignalsSayHowToContinue) {
  const auto stop = [&] {
    Progress progress(stderr, {});
    saying_what_is_kept(progress, folder_ / "web", []() -> PreparedDataset {
      std::raise(SIGINT);
      return {};
    });
  };
  EXPECT_EXIT(stop(), ::testing::ExitedWithCode(130),
              "witan: stopped: complete pieces of the tokens are kept in .*web.partial.*the same command continues");
}

}  // namespace
}  // namespace witan::cli
