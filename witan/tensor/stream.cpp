#include <cstring>
#include <ctime>

#include "witan/base/threads.h"
#include "witan/tensor/arena.h"
#include "witan/tensor/device.h"
#include "witan/tensor/tensor.h"

namespace witan {

Tensor Stream::empty(const Shape& shape, DType dtype, MemoryTag tag) {
  return {device_, arena_, shape, dtype, tag};
}
Tensor Stream::empty(const Shape& shape, DType dtype) {
  return empty(shape, dtype, MemoryTag::activations);
}
Tensor Stream::empty_like(const Tensor& other) {
  return empty(other.shape(), other.dtype());
}

Tensor Stream::zeros(const Shape& shape, DType dtype, MemoryTag tag) {
  Tensor filled = empty(shape, dtype, tag);
  if (!is_meta()) std::memset(filled.raw(), 0, static_cast<size_t>(filled.bytes()));
  return filled;
}
Tensor Stream::zeros(const Shape& shape, DType dtype) {
  return zeros(shape, dtype, MemoryTag::activations);
}

double Stream::now() const {
  timespec time{};
  ::clock_gettime(pool_.threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double Stream::flops() const {
  double sum = 0;
  for (const auto& [part, kernels] : costs_)
    for (const auto& [kernel, cost] : kernels) sum += cost.flops;
  return sum;
}

}  // namespace witan
