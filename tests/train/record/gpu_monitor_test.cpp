#include "witan/train/record/gpu_monitor.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <string>

#include "support/comes_true.h"
#include "support/process_state.h"

namespace witan {
namespace {

using test::Variable;

std::optional<GpusEvent> wait_for_reading(GpuMonitor& monitor, int64_t step) {
  std::optional<GpusEvent> event;
  test::comes_true([&] { return (event = monitor.take(step)).has_value(); });
  return event;
}

// Waits until the monitor has started this many readings.
void wait_for_readings(int count) {
  const std::string path = std::string(WITAN_FAKE_NVML) + "/libnvidia-ml.so.1";
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << ::dlerror();
  const auto readings = reinterpret_cast<int (*)()>(::dlsym(library, "fake_nvml_readings"));
  EXPECT_TRUE(test::comes_true([&] { return readings() >= count; }));
  ::dlclose(library);
}

int64_t threads_of_process() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

TEST(GpuMonitor, ReadsEveryGpuAndKeepsReasonsUntilTaken) {
  const Variable path("WITAN_LIBRARY_PATH", std::string("/nowhere::") + WITAN_FAKE_NVML);
  GpuMonitor monitor(0.002);
  wait_for_readings(3);  // only the first reading has a reason, and two are complete
  const auto event = wait_for_reading(monitor, 7);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->step, 7);
  EXPECT_EQ(event->temperature, (std::vector<double>{60, 61}));
  ASSERT_EQ(event->power.size(), 2u);
  EXPECT_EQ(event->power[0], 412.5);
  EXPECT_TRUE(std::isnan(event->power[1])) << "not reported by this GPU";
  EXPECT_EQ(event->memory_used, (std::vector<double>{50.0 * (1 << 30), 51.0 * (1 << 30)}));
  EXPECT_EQ(event->throttle_reasons,
            (std::vector<int64_t>{0, throttle_reason::power_cap | throttle_reason::hardware_thermal}));
  const auto next = wait_for_reading(monitor, 8);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->step, 8);
  EXPECT_EQ(next->throttle_reasons, (std::vector<int64_t>{0, 0})) << "it was already reported";
}

TEST(GpuMonitor, ReportsAReadingOnceAndEndsAtOnce) {
  const Variable path("WITAN_LIBRARY_PATH", WITAN_FAKE_NVML);
  const auto start = std::chrono::steady_clock::now();
  {
    GpuMonitor monitor(3600);
    ASSERT_TRUE(wait_for_reading(monitor, 1));
    EXPECT_FALSE(monitor.take(2));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

TEST(GpuMonitor, IsEmptyWithoutADriver) {
  const Variable path("WITAN_LIBRARY_PATH", WITAN_FAKE_NVML), broken("FAKE_NVML_BROKEN", "1");
  EXPECT_EQ(Nvml::load(), nullptr);
  const int64_t before = threads_of_process();
  GpuMonitor monitor(0.002);
  EXPECT_TRUE(test::comes_true([&] { return threads_of_process() == before; })) << "its thread is idle";
  EXPECT_FALSE(monitor.take(1));
}

}  // namespace
}  // namespace witan
