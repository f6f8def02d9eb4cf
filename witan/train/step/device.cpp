#include "witan/train/step/device.h"

#include "witan/base/error.h"
#include "witan/tensor/cuda.h"

namespace witan {

Device device_of(const RunConfig& config, int local_rank) {
  if (!config.parallel.on_gpu()) return Device{Device::Kind::cpu};
  // A launcher may show each process its own GPU alone.
  return Device{Device::Kind::cuda, cuda::devices() == 1 ? 0 : local_rank};
}

void require_devices(const RunConfig& config, int64_t ranks) {
  if (!config.parallel.on_gpu()) return;
  const int gpus = cuda::devices();
  require<DeviceError>(gpus > 0, "device = cuda: ", cuda::why_none());
  require<ConfigError>(ranks <= gpus, "ranks = ", ranks, ", but each rank needs its own GPU and ", gpus,
                       " can be used: set ranks to at most ", gpus, ", or --device cpu");
}

Sums sums_of(const RunConfig& config) {
  return config.parallel.deterministic ? Sums::in_tree : Sums::fast;
}

std::shared_ptr<Arena> reserve_arena(Device device, int64_t bytes) {
  return device.kind == Device::Kind::cuda ? Arena::reserve_on_gpu(device.index, bytes) : Arena::reserve(bytes);
}

}  // namespace witan
