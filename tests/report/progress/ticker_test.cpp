#include "witan/report/progress/ticker.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

namespace witan {
namespace {

TEST(Ticker, TicksUntilItEnds) {
  std::promise<void> third;
  std::atomic<int> ticks = 0;
  {
    const Ticker ticker(0.001, [&] {
      if (++ticks == 3) third.set_value();
    });
    EXPECT_EQ(third.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  }
  const int all = ticks;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(ticks, all);
}

TEST(Ticker, EndsAtOnceHoweverLongItsInterval) {
  const auto start = std::chrono::steady_clock::now();
  for (const double seconds : {0.0, 3600.0}) Ticker(seconds, [] { ADD_FAILURE(); });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

}  // namespace
}  // namespace witan
