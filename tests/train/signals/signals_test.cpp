#include "witan/train/signals/signals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

namespace witan {
namespace {

TEST(StopSignals, RequestAStopAndNameTheSignal) {
  for (const auto& [signal, code] : {std::pair{SIGINT, ExitCode::interrupted}, std::pair{SIGTERM, ExitCode::preempted},
                                     std::pair{SIGUSR1, ExitCode::preempted}, std::pair{SIGUSR2, ExitCode::preempted},
                                     std::pair{SIGHUP, ExitCode::preempted}}) {
    const StopSignals signals(StopSignals::Answer::stop);
    EXPECT_FALSE(StopSignals::requested()) << "earlier signals are cleared";
    std::raise(signal);
    EXPECT_TRUE(StopSignals::requested());
    EXPECT_EQ(exit_code_of(StopSignals::asked()), code) << signal;
  }
}

TEST(StopSignals, TestsDoNotDependOnHowTheyWereStarted) {
  for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM}) {
    struct sigaction now {};
    ASSERT_EQ(sigaction(signal, nullptr, &now), 0);
    EXPECT_EQ(now.sa_handler, SIG_DFL) << signal;
  }
}

TEST(StopSignals, ReportTheSignalAndItsSender) {
  const StopSignals signals(StopSignals::Answer::stop);
  EXPECT_EQ(StopSignals::cause(), "");
  ::kill(::getpid(), SIGTERM);
  EXPECT_EQ(StopSignals::cause(), "SIGTERM from process " + std::to_string(::getpid()) + " (test_train)");
  // The sender has ended.
  const pid_t child = ::fork();
  if (child == 0) {
    ::kill(::getppid(), SIGUSR2);
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(StopSignals::cause(), "SIGUSR2 from process " + std::to_string(child));
}

TEST(StopSignals, UnderNohupALostTerminalIsIgnored) {
  const auto before = std::signal(SIGHUP, SIG_IGN);
  {
    const StopSignals signals(StopSignals::Answer::stop);
    std::raise(SIGHUP);
    EXPECT_FALSE(StopSignals::requested());
  }
  std::signal(SIGHUP, before);
}

TEST(StopSignalsDeathTest, ASecondInterruptEndsTheProcess) {
  EXPECT_EXIT(
      {
        const StopSignals signals(StopSignals::Answer::stop);
        StopSignals::saved();
        std::raise(SIGTERM);
        std::raise(SIGINT);  // the first SIGINT
        std::raise(SIGINT);
      },
      ::testing::ExitedWithCode(130),
      "Quit without saving: steps since the last checkpoint, which is intact, are lost");
}

TEST(StopSignalsDeathTest, MentionsNoCheckpointIfThereIsNone) {
  EXPECT_EXIT(
      {
        {
          const StopSignals before(StopSignals::Answer::stop);
          StopSignals::saved();  // from an earlier run
        }
        const StopSignals signals(StopSignals::Answer::stop);
        std::raise(SIGINT);
        std::raise(SIGINT);
      },
      ::testing::ExitedWithCode(130), "there is no checkpoint yet; the same command starts the run again");
}

TEST(StopSignalsDeathTest, EndsAtOnceIfThereIsNothingToSave) {
  for (const auto& [signal, code] : {std::pair{SIGINT, 130}, std::pair{SIGTERM, 75}, std::pair{SIGUSR1, 75},
                                     std::pair{SIGUSR2, 75}, std::pair{SIGHUP, 75}})
    EXPECT_EXIT(
        {
          const StopSignals signals(StopSignals::Answer::end);
          std::raise(signal);
        },
        ::testing::ExitedWithCode(code), "nothing to save; the same command resumes");
}

TEST(StopSignalsDeathTest, TheFirstInterruptAfterAnotherSignalStillSaves) {
  EXPECT_EXIT(
      {
        const StopSignals signals(StopSignals::Answer::stop);
        std::raise(SIGTERM);
        std::raise(SIGINT);
        std::_Exit(StopSignals::requested() ? 7 : 8);
      },
      ::testing::ExitedWithCode(7),
      "Finishing this step and saving; Ctrl-C again quits without saving\n\n"
      "Finishing this step and saving; Ctrl-C again quits without saving");
}

TEST(StopSignalsDeathTest, ASilentProcessBehavesTheSame) {
  using Voice = StopSignals::Voice;
  EXPECT_EXIT(
      {
        const StopSignals command(StopSignals::Answer::end);
        const StopSignals run(StopSignals::Answer::stop, Voice::silent);
        std::raise(SIGTERM);
        std::_Exit(StopSignals::requested() ? 7 : 8);
      },
      ::testing::ExitedWithCode(7), ::testing::StrEq(""));
  EXPECT_EXIT(
      {
        const StopSignals command(StopSignals::Answer::end, Voice::silent);
        std::raise(SIGINT);
      },
      ::testing::ExitedWithCode(130), ::testing::StrEq(""));
}

TEST(StopSignals, DistinguishARestartFromAUsersSignal) {
  const StopSignals signals(StopSignals::Answer::stop);
  std::raise(SIGUSR1);
  EXPECT_FALSE(StopSignals::restarts());
  StopSignals::send_restart(::getpid());
  EXPECT_TRUE(StopSignals::restarts());
  EXPECT_EQ(StopSignals::asked(), RunEnd::preempted);
  std::raise(SIGINT);
  EXPECT_FALSE(StopSignals::restarts()) << "the user wants the run to end";
}

TEST(StopSignalsDeathTest, ARestartPrintsNothing) {
  EXPECT_EXIT(
      {
        const StopSignals command(StopSignals::Answer::end);
        {
          const StopSignals run(StopSignals::Answer::stop);
          StopSignals::send_restart(::getpid());
        }
        StopSignals::send_restart(::getpid());
      },
      ::testing::ExitedWithCode(75), ::testing::StrEq(""));
}

// A run's handler replaces the command's, which returns afterwards with signals received meanwhile.
TEST(StopSignalsDeathTest, ThePreviousHandlerReturns) {
  EXPECT_EXIT(
      {
        const StopSignals command(StopSignals::Answer::end);
        {
          const StopSignals run(StopSignals::Answer::stop);
          std::raise(SIGUSR1);
        }
        if (StopSignals::asked() == RunEnd::preempted) std::raise(SIGINT);
      },
      ::testing::ExitedWithCode(130), "nothing to save; the same command resumes");
}

}  // namespace
}  // namespace witan
