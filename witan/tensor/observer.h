// The interface through which a trace observes the kernels of a stream.
#pragma once

#include <cstdint>

#include "witan/tensor/device.h"

namespace witan {

class KernelObserver {
 public:
  virtual ~KernelObserver() = default;
  // A kernel ran between these moments of steady_ns(), including on the device. Called by the stream's thread.
  virtual void kernel(Stream& stream, const char* name, const Cost& cost, int64_t begin_ns, int64_t end_ns) = 0;
};

// A monotonic clock shared by all processes of a host.
int64_t steady_ns();

}  // namespace witan
