#include "witan/train/record/gpu_monitor.h"

#include <dlfcn.h>

#include <chrono>
#include <cstdlib>
#include <limits>
#include <sstream>
#include <utility>

namespace witan {
namespace {

constexpr const char* kLibrary = "libnvidia-ml.so.1";
constexpr int kSuccess = 0;
constexpr int kOfTheGpu = 0;  // NVML_TEMPERATURE_GPU

void* open_library() {
  if (const char* listed = std::getenv("WITAN_LIBRARY_PATH")) {
    std::istringstream text(listed);
    for (std::string folder; std::getline(text, folder, ':');)
      if (void* library = folder.empty() ? nullptr : ::dlopen((folder + "/" + kLibrary).c_str(), RTLD_NOW | RTLD_LOCAL))
        return library;
  }
  return ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
}

}  // namespace

GpuMonitor::GpuMonitor(double seconds) : thread_([this, seconds] { run(seconds); }) {}

GpuMonitor::~GpuMonitor() {
  {
    const MutexLock lock(mutex_);
    ended_ = true;
  }
  end_.notify_all();
  thread_.join();
}

// Loads and calls the library without the lock, since both may take a long time.
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

struct Nvml::Calls {
  struct Memory {  // nvmlMemory_t, bytes
    unsigned long long total, free, used;
  };
  int (*init)();
  int (*shutdown)();
  int (*count)(unsigned*);
  int (*handle)(unsigned index, void** gpu);
  int (*temperature)(void* gpu, int sensor, unsigned* celsius);
  int (*power)(void* gpu, unsigned* milliwatts);
  int (*memory)(void* gpu, Memory*);
  int (*throttle_reasons)(void* gpu, unsigned long long*);
};

std::unique_ptr<Nvml> Nvml::load() {
  void* library = open_library();
  if (library == nullptr) return nullptr;
  auto calls = std::make_unique<Calls>();
  bool all = true;
  const auto find = [&]<class Call>(Call*& call, const char* name) {
    call = reinterpret_cast<Call*>(::dlsym(library, name));
    all = all && call != nullptr;
  };
  find(calls->init, "nvmlInit_v2");
  find(calls->shutdown, "nvmlShutdown");
  find(calls->count, "nvmlDeviceGetCount_v2");
  find(calls->handle, "nvmlDeviceGetHandleByIndex_v2");
  find(calls->temperature, "nvmlDeviceGetTemperature");
  find(calls->power, "nvmlDeviceGetPowerUsage");
  find(calls->memory, "nvmlDeviceGetMemoryInfo");
  find(calls->throttle_reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");
  if (all && calls->init() == kSuccess) return std::unique_ptr<Nvml>(new Nvml(library, std::move(calls)));
  ::dlclose(library);
  return nullptr;
}

Nvml::Nvml(void* library, std::unique_ptr<Calls> calls) : library_(library), calls_(std::move(calls)) {
  unsigned count = 0;
  if (calls_->count(&count) != kSuccess) return;
  for (unsigned index = 0; index < count; ++index)
    if (void* gpu = nullptr; calls_->handle(index, &gpu) == kSuccess) gpus_.push_back(gpu);
}

Nvml::~Nvml() {
  calls_->shutdown();
  ::dlclose(library_);
}

std::vector<GpuReading> Nvml::read() const {
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  std::vector<GpuReading> readings;
  for (void* gpu : gpus_) {
    unsigned celsius = 0, milliwatts = 0;
    Calls::Memory memory{};
    unsigned long long reasons = 0;
    GpuReading& reading = readings.emplace_back(GpuReading{kUnknown, kUnknown, kUnknown, 0});
    if (calls_->temperature(gpu, kOfTheGpu, &celsius) == kSuccess) reading.temperature = celsius;
    if (calls_->power(gpu, &milliwatts) == kSuccess) reading.power = milliwatts * 1e-3;
    if (calls_->memory(gpu, &memory) == kSuccess) reading.memory_used = static_cast<double>(memory.used);
    if (calls_->throttle_reasons(gpu, &reasons) == kSuccess) reading.throttle_reasons = static_cast<int64_t>(reasons);
  }
  return readings;
}

}  // namespace witan
