#include "witan/train/signals.h"

#include <gtest/gtest.h>

namespace witan {
namespace {

TEST(StopSignals, AskForAStopAndSayWhich) {
  for (const auto& [signal, code] : {std::pair{SIGINT, ExitCode::interrupted}, std::pair{SIGTERM, ExitCode::preempted},
                                     std::pair{SIGUSR1, ExitCode::preempted}, std::pair{SIGUSR2, ExitCode::preempted},
                                     std::pair{SIGHUP, ExitCode::preempted}}) {
    const StopSignals signals;
    EXPECT_FALSE(StopSignals::requested()) << "what came before is forgotten";
    std::raise(signal);
    EXPECT_TRUE(StopSignals::requested());
    EXPECT_EQ(StopSignals::exit_code(), code) << signal;
  }
}

TEST(StopSignals, UnderNohupALostTerminalIsNoReasonToStop) {
  const auto before = std::signal(SIGHUP, SIG_IGN);
  {
    const StopSignals signals;
    std::raise(SIGHUP);
    EXPECT_FALSE(StopSignals::requested());
  }
  std::signal(SIGHUP, before);
}

TEST(StopSignalsDeathTest, ASecondInterruptEndsTheProcess) {
  EXPECT_EXIT(
      {
        const StopSignals signals;
        std::raise(SIGTERM);
        std::raise(SIGINT);  // the first of its kind
        std::raise(SIGINT);
      },
      ::testing::ExitedWithCode(130), "");
}

}  // namespace
}  // namespace witan
