#include "witan/train/record/gpu_monitor.h"

#include <chrono>
#include <utility>

#include "witan/train/record/nvml.h"

namespace witan {

GpuMonitor::GpuMonitor(double seconds) : thread_([this, seconds] { run(seconds); }) {}

GpuMonitor::~GpuMonitor() {
  {
    const MutexLock lock(mutex_);
    ended_ = true;
  }
  end_.notify_all();
  thread_.join();
}

// Loading the library and asking it may take long: neither is done under the lock.
void GpuMonitor::run(double seconds) {
  const auto pause = std::chrono::duration_cast<CondVar::Time::duration>(std::chrono::duration<double>(seconds));
  const std::unique_ptr<Nvml> nvml = Nvml::load();
  if (nvml == nullptr) return;
  for (;;) {
    add(*nvml);
    const CondVar::Time next = std::chrono::steady_clock::now() + pause;
    MutexLock lock(mutex_);
    while (!ended_ && end_.wait_until(lock, next)) {
    }
    if (ended_) return;
  }
}

void GpuMonitor::add(const Nvml& nvml) {
  GpusEvent event;
  for (const GpuReading& reading : nvml.read()) {
    event.temperature.push_back(reading.temperature);
    event.power.push_back(reading.power);
    event.memory_used.push_back(reading.memory_used);
    event.throttle_reasons.push_back(reading.throttle_reasons);
  }
  if (event.temperature.empty()) return;
  const MutexLock lock(mutex_);
  if (latest_)
    for (size_t gpu = 0; gpu < event.throttle_reasons.size(); ++gpu)
      event.throttle_reasons[gpu] |= latest_->throttle_reasons[gpu];
  latest_ = std::move(event);
}

std::optional<GpusEvent> GpuMonitor::take(int64_t step) {
  const MutexLock lock(mutex_);
  std::optional<GpusEvent> event = std::exchange(latest_, std::nullopt);
  if (event) event->step = step;
  return event;
}

}  // namespace witan
