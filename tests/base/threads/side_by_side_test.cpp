#include "witan/base/threads/side_by_side.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

namespace witan {
namespace {

TEST(SideBySide, DoesEachOnce) {
  for (const size_t count : {0, 1, 15, 16, 33, 5000}) {
    std::vector<std::atomic<int>> done(count);
    side_by_side(count, [&](size_t i) { ++done[i]; });
    EXPECT_TRUE(std::ranges::all_of(done, [](const auto& times) { return times == 1; })) << count;
  }
}

TEST(SideBySide, ThrowsTheErrorOfTheLowestNumberAfterAll) {
  std::atomic<int> done{0};
  std::string error;
  try {
    side_by_side(1000, [&](size_t i) {
      ++done;
      if (i % 300 == 299) throw std::runtime_error("number " + std::to_string(i));
    });
  } catch (const std::runtime_error& thrown) {
    error = thrown.what();
  }
  EXPECT_EQ(error, "number 299");
  EXPECT_EQ(done, 1000);
}

// Each of the first 32 waits until all of them have begun: with fewer threads it would take until the time is over.
TEST(SideBySide, WaitsForManyAtOnceWhateverTheCores) {
  std::mutex mutex;
  std::condition_variable changed;
  size_t inside = 0, met = 0;
  side_by_side(1000, [&](size_t) {
    std::unique_lock lock(mutex);
    if (met >= 32) return;
    met = std::max(met, ++inside);
    changed.notify_all();
    changed.wait_for(lock, std::chrono::seconds(20), [&] { return met >= 32; });
    --inside;
  });
  EXPECT_EQ(met, 32u);
}

}  // namespace
}  // namespace witan
