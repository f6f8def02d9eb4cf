// Chooses the device of each rank of a run.
#pragma once

#include <memory>

#include "witan/comm/cuda.h"
#include "witan/tensor/arena.h"
#include "witan/tensor/device.h"
#include "witan/train/config/config.h"

namespace witan {

// The GPU numbered as the rank is on its host, or the only one that the process can see; or the CPU. The config must be
// resolved.
Device device_of(const RunConfig& config, int local_rank);

// Throws unless each of this host's ranks has a GPU of its own: DeviceError if there is no GPU, ConfigError if there
// are too few. Checks nothing on the CPU.
void require_devices(const RunConfig& config, int64_t ranks);

// How the run's ranks add up sums.
Sums sums_of(const RunConfig& config);

// Reserves memory on that device. Throws OutOfMemoryError.
std::shared_ptr<Arena> reserve_arena(Device device, int64_t bytes);

}  // namespace witan
