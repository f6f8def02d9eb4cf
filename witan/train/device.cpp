#include "witan/train/device.h"

#include "witan/base/error.h"
#include "witan/tensor/cuda.h"

namespace witan {

Device device_of(const RunConfig& config, int rank) {
  return config.parallel.on_gpu() ? Device{Device::Kind::cuda, rank} : Device{Device::Kind::cpu};
}

void require_devices(const RunConfig& config) {
  if (!config.parallel.on_gpu()) return;
  const int gpus = cuda::devices();
  require<ConfigError>(gpus > 0, "device = cuda: ", cuda::why_none());
  require<ConfigError>(config.parallel.ranks <= gpus, "ranks = ", config.parallel.ranks,
                       ", but a rank needs a GPU of its own and ", gpus, " can be used: set ranks to at most ", gpus,
                       ", or --device cpu");
}

Sums sums_of(const RunConfig& config) {
  return config.parallel.deterministic ? Sums::in_tree : Sums::fast;
}

std::shared_ptr<Arena> reserve_arena(Device device, int64_t bytes) {
  return device.kind == Device::Kind::cuda ? Arena::reserve_on_gpu(device.index, bytes) : Arena::reserve(bytes);
}

}  // namespace witan
