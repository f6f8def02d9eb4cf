// NVIDIA's management library (NVML), which the driver brings: loaded while the program runs, so that it needs neither
// to be built nor to run. Declarations are those of its reference, docs.nvidia.com/deploy/nvml-api.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace witan {

// Of one GPU. NaN, and no reason, where the GPU does not tell.
struct GpuReading {
  double temperature = 0;        // degrees Celsius
  double power = 0;              // watts
  double memory_used = 0;        // bytes, by all processes
  int64_t throttle_reasons = 0;  // why clocks are lower than they could be: bits of throttle_reason
};

namespace throttle_reason {
inline constexpr int64_t power_cap = 0x4;
inline constexpr int64_t hardware_slowdown = 0x8;
inline constexpr int64_t software_thermal = 0x20;
inline constexpr int64_t hardware_thermal = 0x40;
inline constexpr int64_t power_brake = 0x80;
}  // namespace throttle_reason

class Nvml {
 public:
  // libnvidia-ml.so.1, from the folders of WITAN_LIBRARY_PATH or else from where the system's loader finds it. Null
  // where there is none, or no driver that it works with.
  static std::unique_ptr<Nvml> load();
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // Of every GPU of this machine that the process may see, in NVML's order.
  std::vector<GpuReading> read() const;

 private:
  struct Calls;
  Nvml(void* library, std::unique_ptr<Calls> calls);

  void* library_;
  std::unique_ptr<Calls> calls_;
  std::vector<void*> gpus_;
};

}  // namespace witan
