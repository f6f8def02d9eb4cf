// Copies rows and blocks from the places that a function of the output index gives, in the widest units that rows and
// addresses allow.
#pragma once

#include "witan/kernels/common/cuda/common.cuh"

namespace witan::kernels::cuda {

inline constexpr int kCopyThreads = 256;
inline constexpr int kCopyUnits = 4;  // per thread; all are loaded before the first is stored

// y[i] = x[source(i)], or zero where the source is negative. Index is wide enough for every i.
template <class Unit, class Index, class Source>
__global__ void __launch_bounds__(kCopyThreads) copy_kernel(Unit* y, const Unit* x, Index units, Source source) {
  Unit held[kCopyUnits];
  const Index begin = static_cast<Index>(blockIdx.x) * (kCopyThreads * kCopyUnits) + threadIdx.x;
#pragma unroll
  for (int k = 0; k < kCopyUnits; ++k) {
    const Index i = begin + k * kCopyThreads;
    const int64_t from = i < units ? source(i) : -1;
    held[k] = {};
    if (from >= 0) held[k] = x[from];
  }
#pragma unroll
  for (int k = 0; k < kCopyUnits; ++k) {
    const Index i = begin + k * kCopyThreads;
    if (i < units) y[i] = held[k];
  }
}

// Calls body.template operator()<Unit>(units per row) with the widest unit that divides the row and both addresses.
template <class Body>
void with_copy_unit(const Tensor& y, const Tensor& x, int64_t row_bytes, const Body& body) {
  const auto together =
      reinterpret_cast<uintptr_t>(y.raw()) | reinterpret_cast<uintptr_t>(x.raw()) | static_cast<uintptr_t>(row_bytes);
  if (together % 16 == 0)
    body.template operator()<uint4>(row_bytes / 16);
  else if (together % 4 == 0)
    body.template operator()<uint32_t>(row_bytes / 4);
  else
    body.template operator()<uint16_t>(row_bytes / 2);
}

// Fills y with rows of `row_bytes` from x; make_source(units per row) returns a function object with int64_t
// operator()(Index unit of y).
template <class MakeSource>
void copy_rows(Stream& stream, const Tensor& y, const Tensor& x, int64_t row_bytes, const MakeSource& make_source) {
  if (y.bytes() == 0) return;
  with_copy_unit(y, x, row_bytes, [&]<class Unit>(int64_t row) {
    const int64_t units = y.bytes() / static_cast<int64_t>(sizeof(Unit)), per_block = kCopyThreads * kCopyUnits;
    const auto blocks = static_cast<unsigned>((units + per_block - 1) / per_block);
    const auto launch = [&]<class Index>() {
      copy_kernel<<<blocks, kCopyThreads, 0, native(stream)>>>(
          ptr<Unit>(y), ptr<const Unit>(x), static_cast<Index>(units), make_source.template operator()<Index>(row));
    };
    // Indices are divided, which is cheaper in 32 bits.
    if (units <= int64_t{1} << 31)
      launch.template operator()<uint32_t>();
    else
      launch.template operator()<uint64_t>();
  });
}

}  // namespace witan::kernels::cuda
