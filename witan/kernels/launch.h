// How a kernel reaches its device. Every kernel is declared once, in its family's header, and has three twins:
//   kernels/<family>.cpp       cost: checks nothing, counts FLOPs and bytes, and sends the call to
//   kernels/cpu/<family>.cpp   the CPU twin, a template over the dtype, in float64 too;
//   the meta device            which stops after counting.
// Ops have checked shapes and dtypes before; kernels assert them.
#pragma once

#include <utility>

#include "witan/tensor/tensor.h"

namespace witan::kernels {

// Declares the CPU twin of a kernel declared just before, with the same signature.
#define WITAN_KERNEL_TWINS(name)         \
  namespace cpu {                        \
  decltype(::witan::kernels::name) name; \
  }

template <class CpuTwin, class... Args>
void launch(Stream& stream, const char* name, const Cost& cost, CpuTwin* cpu, Args&&... args) {
  if (stream.is_meta() || !stream.times_kernels()) {
    stream.count(name, cost);
    if (!stream.is_meta()) cpu(stream, std::forward<Args>(args)...);
    return;
  }
  const double start = stream.now();
  cpu(stream, std::forward<Args>(args)...);
  stream.count(name, {cost.flops, cost.bytes, stream.now() - start});
}

// WITAN_LAUNCH(stream, kernel, cost, arguments after the stream…)
#define WITAN_LAUNCH(stream, name, cost, ...) ::witan::kernels::launch(stream, #name, cost, &cpu::name, __VA_ARGS__)

// Bytes that reading or writing each tensor once moves.
template <class... Tensors>
double bytes_of(const Tensors&... tensors) {
  return (0.0 + ... + (tensors.defined() ? static_cast<double>(tensors.bytes()) : 0.0));
}

}  // namespace witan::kernels
