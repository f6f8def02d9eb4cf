// Interfaces that observe a stream: its kernels as they run, one after the other, its work as it is queued, or the
// values that it computes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "witan/tensor/device.h"
#include "witan/tensor/tensor.h"

namespace witan {

class KernelObserver {
 public:
  virtual ~KernelObserver() = default;
  // A kernel ran between these moments of steady_ns(), including on the device. Called by the stream's thread.
  virtual void kernel(Stream& stream, const char* name, const Cost& cost, int64_t begin_ns, int64_t end_ns) = 0;
};

// A kernel, or an exchange with other ranks, that was queued on a stream.
struct QueuedWork {
  std::string_view name;  // a literal
  Cost cost = {};
  int ranks = 0;               // in the exchange; 0: a kernel
  double bytes_sent = 0;       // by the exchange
  std::string_view axis = {};  // of the exchange
  std::string call = {};       // describes the exchange
};

// Observes everything that is queued, without waiting for it, also while a step is captured. Launches may nest.
class LaunchObserver {
 public:
  virtual ~LaunchObserver() = default;
  virtual void begins(Stream& stream) = 0;
  virtual void ends(Stream& stream, QueuedWork work) = 0;
  // Work queued from here on waits for another stream.
  virtual void follows(Stream& stream) = 0;
};

// A monotonic clock shared by all processes of a host.
int64_t steady_ns();

// Observes values while a step computes them, for example to find the first that is not finite (Stream::observe). Steps
// are then launched kernel by kernel.
class TensorObserver : public KernelObserver {
 public:
  // Memory was allocated on the stream, and is not written yet. Rows of receive buffers without a token are never
  // written.
  virtual void allocated(Stream& stream, const Tensor& memory) = 0;
  // An op was recorded with these outputs.
  virtual void computed(Stream& stream, std::string_view op, std::span<const Tensor> outputs) = 0;
  // The backward reaches the op that the stream's trace context names, with the gradients of its outputs; a gradient is
  // undefined if the output was not used.
  virtual void gradients_of(Stream& stream, std::span<const Tensor> gradients) = 0;
  // Called after the op that wrote a parameter's gradient as the last one in this backward.
  virtual void parameter_gradient(Stream& stream, const Tensor& gradient) = 0;

  // The stream's observer if it is a TensorObserver, else null.
  static TensorObserver* of(const Stream& stream) {
    return stream.observer() == nullptr ? nullptr : dynamic_cast<TensorObserver*>(stream.observer());
  }
};

}  // namespace witan
