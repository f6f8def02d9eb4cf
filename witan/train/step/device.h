// Chooses the device of each rank of a run.
#pragma once

#include <memory>

#include "witan/comm/cuda.h"
#include "witan/tensor/arena.h"
#include "witan/tensor/device.h"
#include "witan/train/config/config.h"

namespace witan {

// The GPU of the rank's number among the ranks of its host, or the only one that the process may see; or the CPU. The
// config must be resolved.
Device device_of(const RunConfig& config, int local_rank);

// Throws unless each of so many ranks of this host has a GPU of its own: DeviceError where there is none, ConfigError
// where they are too few. Nothing on the CPU.
void require_devices(const RunConfig& config, int64_t ranks);

// How its ranks' sums are formed.
Sums sums_of(const RunConfig& config);

// Memory of that device. Throws OutOfMemoryError.
std::shared_ptr<Arena> reserve_arena(Device device, int64_t bytes);

}  // namespace witan
