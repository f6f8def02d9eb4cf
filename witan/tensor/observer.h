// The interfaces through which a trace observes the kernels of a stream: as they run, one after the other, or as they
// are queued.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "witan/tensor/device.h"

namespace witan {

class KernelObserver {
 public:
  virtual ~KernelObserver() = default;
  // A kernel ran between these moments of steady_ns(), including on the device. Called by the stream's thread.
  virtual void kernel(Stream& stream, const char* name, const Cost& cost, int64_t begin_ns, int64_t end_ns) = 0;
};

// Something that was queued on a stream: a kernel, or an exchange with other ranks.
struct QueuedWork {
  std::string_view name;  // of a constant
  Cost cost = {};
  int ranks = 0;          // that exchange; 0: a kernel
  double bytes_sent = 0;  // likewise
  std::string_view axis = {};
  std::string call = {};  // what is exchanged, in words
};

// Is told of everything that is queued, and nothing waits for it: also while a step is captured. Launches may nest.
class LaunchObserver {
 public:
  virtual ~LaunchObserver() = default;
  virtual void begins(Stream& stream) = 0;
  virtual void ends(Stream& stream, QueuedWork work) = 0;
  // What is queued next waits for another stream.
  virtual void follows(Stream& stream) = 0;
};

// A monotonic clock shared by all processes of a host.
int64_t steady_ns();

}  // namespace witan
