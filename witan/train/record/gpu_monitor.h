// Reads temperature, power, memory and throttling of this machine's GPUs every few seconds, on a thread of its own:
// training never waits for the driver. Where there is no NVML it has nothing to tell.
#pragma once

#include <optional>
#include <thread>

#include "witan/base/threads/mutex.h"
#include "witan/report/events/events.h"

namespace witan {

class Nvml;

// Thread-safe.
class GpuMonitor {
 public:
  static constexpr double kSeconds = 5;

  explicit GpuMonitor(double seconds = kSeconds);
  ~GpuMonitor();  // ends the thread
  GpuMonitor(const GpuMonitor&) = delete;
  GpuMonitor& operator=(const GpuMonitor&) = delete;

  // What was read last, with all reasons for throttling since the call before; nothing if nothing was read since.
  std::optional<GpusEvent> take(int64_t step);

 private:
  void run(double seconds);
  void add(const Nvml& nvml);

  Mutex mutex_;
  std::optional<GpusEvent> latest_ WITAN_GUARDED_BY(mutex_);
  bool ended_ WITAN_GUARDED_BY(mutex_) = false;
  CondVar end_;
  std::thread thread_;  // last: it uses all of the others
};

}  // namespace witan
