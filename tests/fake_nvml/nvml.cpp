// A libnvidia-ml.so.1 of two GPUs, for tests of witan/train/record/gpu_monitor. The second GPU does not report its
// power, and has lowered its clocks for the first reading alone. FAKE_NVML_BROKEN: there is no driver.
#include <atomic>
#include <cstdlib>

namespace {

constexpr int kSuccess = 0, kNotSupported = 3, kDriverNotLoaded = 9;
int gpus[2];
std::atomic<int> readings = 0;  // of the second GPU

long index_of(const void* gpu) {
  return static_cast<const int*>(gpu) - gpus;
}

struct Memory {
  unsigned long long total, free, used;
};

}  // namespace

extern "C" {

int nvmlInit_v2() {
  return std::getenv("FAKE_NVML_BROKEN") ? kDriverNotLoaded : kSuccess;
}
int nvmlShutdown() {
  return kSuccess;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return kSuccess;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** gpu) {
  *gpu = &gpus[index];
  return kSuccess;
}
int nvmlDeviceGetTemperature(void* gpu, int sensor, unsigned* celsius) {
  *celsius = static_cast<unsigned>(60 + index_of(gpu));
  return sensor == 0 ? kSuccess : kNotSupported;
}
int nvmlDeviceGetPowerUsage(void* gpu, unsigned* milliwatts) {
  *milliwatts = 412'500;
  return index_of(gpu) == 0 ? kSuccess : kNotSupported;
}
int nvmlDeviceGetMemoryInfo(void* gpu, Memory* memory) {
  *memory = {80ULL << 30, 30ULL << 30, static_cast<unsigned long long>(50 + index_of(gpu)) << 30};
  return kSuccess;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void* gpu, unsigned long long* reasons) {
  *reasons = index_of(gpu) == 1 && readings++ == 0 ? 0x44 : 0;
  return kSuccess;
}

// For tests alone: the readings that have begun.
int fake_nvml_readings() {
  return readings;
}

}  // extern "C"
