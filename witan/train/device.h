// Where a rank of a run computes.
#pragma once

#include <memory>

#include "witan/comm/cuda.h"
#include "witan/tensor/arena.h"
#include "witan/tensor/device.h"
#include "witan/train/config.h"

namespace witan {

// The GPU of the rank's number, or the CPU. The config must be resolved.
Device device_of(const RunConfig& config, int rank);

// Throws ConfigError unless every rank has a GPU of its own; nothing on the CPU.
void require_devices(const RunConfig& config);

// How its ranks' sums are formed.
Sums sums_of(const RunConfig& config);

// Memory of that device. Throws OutOfMemoryError.
std::shared_ptr<Arena> reserve_arena(Device device, int64_t bytes);

}  // namespace witan
