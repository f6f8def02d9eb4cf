// Temperature, power, memory and throttling of this machine's GPUs, read every few seconds on a separate thread, so
// that training never waits for the driver. Without NVML nothing is reported.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "witan/base/threads/mutex.h"
#include "witan/report/events/events.h"

namespace witan {

// Readings of one GPU; NaN, and no throttle reason, if the GPU does not report them.
struct GpuReading {
  double temperature = 0;        // degrees Celsius
  double power = 0;              // watts
  double memory_used = 0;        // bytes, by all processes
  int64_t throttle_reasons = 0;  // why clocks are reduced: bits of throttle_reason
};

namespace throttle_reason {
inline constexpr int64_t power_cap = 0x4;
inline constexpr int64_t hardware_slowdown = 0x8;
inline constexpr int64_t software_thermal = 0x20;
inline constexpr int64_t hardware_thermal = 0x40;
inline constexpr int64_t power_brake = 0x80;
}  // namespace throttle_reason

// NVIDIA's management library (NVML), which comes with the driver. It is loaded at run time, so that neither the build
// nor a run needs it. Declarations follow its reference, docs.nvidia.com/deploy/nvml-api.
class Nvml {
 public:
  // Loads libnvidia-ml.so.1 from the folders of WITAN_LIBRARY_PATH, or else by the system's search path. Null if it is
  // missing, or no driver works with it.
  static std::unique_ptr<Nvml> load();
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // Reads every GPU that is visible to the process, in NVML's order.
  std::vector<GpuReading> read() const;

 private:
  struct Calls;
  Nvml(void* library, std::unique_ptr<Calls> calls);

  void* library_;
  std::unique_ptr<Calls> calls_;
  std::vector<void*> gpus_;
};

// Thread-safe.
class GpuMonitor {
 public:
  static constexpr double kSeconds = 5;

  explicit GpuMonitor(double seconds = kSeconds);
  ~GpuMonitor();  // ends the thread
  GpuMonitor(const GpuMonitor&) = delete;
  GpuMonitor& operator=(const GpuMonitor&) = delete;

  // The latest readings, with all throttle reasons since the previous call; nothing if there are no new ones.
  std::optional<GpusEvent> take(int64_t step);

 private:
  void run(double seconds);
  void add(const Nvml& nvml);

  Mutex mutex_;
  std::optional<GpusEvent> latest_ WITAN_GUARDED_BY(mutex_);
  bool ended_ WITAN_GUARDED_BY(mutex_) = false;
  CondVar end_;
  std::thread thread_;  // last, since it uses all other members
};

}  // namespace witan
