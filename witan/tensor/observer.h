// Somebody who looks on as a stream's kernels run: a trace.
#pragma once

#include <cstdint>

#include "witan/tensor/device.h"

namespace witan {

class KernelObserver {
 public:
  virtual ~KernelObserver() = default;
  // A kernel has run between these moments of steady_ns(), on the device too. Called by the thread of the stream.
  virtual void kernel(Stream& stream, const char* name, const Cost& cost, int64_t begin_ns, int64_t end_ns) = 0;
};

// Of the clock that all processes of a host share and that never goes back.
int64_t steady_ns();

}  // namespace witan
