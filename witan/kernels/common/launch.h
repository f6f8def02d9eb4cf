// How a kernel reaches its device. Every kernel is declared once, in its family's header, and has four twins:
//   kernels/<family>/cost.cpp        cost: checks nothing, counts FLOPs and bytes, and sends the call to
//   kernels/<family>/cpu/<name>.cpp  the CPU twin, a template over the dtype, in float64 too;
//   kernels/<family>/cuda/<name>.cu  the CUDA twin, in builds with CUDA: float32, bfloat16 and float64;
//   the meta device                  which stops after counting.
// Ops have checked shapes and dtypes before; kernels assert them.
#pragma once

#include <utility>

#include "witan/tensor/observer.h"
#include "witan/tensor/tensor.h"
#include "witan/tensor/trace_context.h"

namespace witan::kernels {

// Declares the CPU and CUDA twins of a kernel declared just before, with the same signature.
#define WITAN_KERNEL_TWINS(name)         \
  namespace cpu {                        \
  decltype(::witan::kernels::name) name; \
  }                                      \
  WITAN_CUDA_TWIN(name)
#if WITAN_CUDA
#define WITAN_CUDA_TWIN(name)            \
  namespace cuda {                       \
  decltype(::witan::kernels::name) name; \
  }
#define WITAN_CALL_CUDA(name, ...) ::witan::kernels::cuda::name(__VA_ARGS__)
#else
#define WITAN_CUDA_TWIN(name)
#define WITAN_CALL_CUDA(name, ...) (void)0  // such streams cannot be made in this build
#endif

// Runs `work` on the stream's device and charges the stream for it. `shape`: what its speed depends on beside its cost.
template <class Work>
void charge(Stream& stream, const char* name, const Cost& cost, const Work& work, const CallShape& shape = {}) {
  if (stream.is_meta()) return stream.count(name, cost, shape);
  KernelObserver* observer = stream.observer();
  if (!stream.times_kernels() && observer == nullptr) {
    stream.count(name, cost, shape);
    LaunchObserver* const launches = stream.launches();
    if (launches != nullptr) launches->begins(stream);
    work();
    stream.queue()->check(name);
    if (launches != nullptr) launches->ends(stream, {.name = name, .cost = cost});
    return;
  }
  stream.wait();
  const double start = stream.now();
  const int64_t begin_ns = steady_ns();
  work();
  stream.queue()->check(name);
  stream.wait();
  const double seconds = stream.times_kernels() ? stream.now() - start : 0;
  stream.count(name, {cost.flops, cost.bytes, seconds}, shape);
  if (observer != nullptr) observer->kernel(stream, name, cost, begin_ns, steady_ns());
}

// WITAN_LAUNCH(stream, kernel, cost, arguments after the stream…)
#define WITAN_LAUNCH(stream, name, cost, ...) WITAN_LAUNCH_SHAPED(stream, name, cost, ::witan::CallShape{}, __VA_ARGS__)
// WITAN_LAUNCH with the shape of the call.
#define WITAN_LAUNCH_SHAPED(stream, name, cost, shape, ...) \
  WITAN_LAUNCH_NAMED(stream, name, #name, cost, shape, __VA_ARGS__)
// WITAN_LAUNCH_SHAPED, counted under another name.
#define WITAN_LAUNCH_NAMED(stream, name, counted, cost, shape, ...) \
  ::witan::kernels::charge(                                         \
      stream, counted, cost,                                        \
      [&] {                                                         \
        if ((stream).is_cuda())                                     \
          WITAN_CALL_CUDA(name, stream, __VA_ARGS__);               \
        else                                                        \
          ::witan::kernels::cpu::name(stream, __VA_ARGS__);         \
      },                                                            \
      shape)

// Bytes that reading or writing each tensor once moves.
template <class... Tensors>
double bytes_of(const Tensors&... tensors) {
  return (0.0 + ... + (tensors.defined() ? static_cast<double>(tensors.bytes()) : 0.0));
}

}  // namespace witan::kernels
