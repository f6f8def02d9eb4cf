// Sums in a fixed order on the GPU.
#pragma once

#include "witan/comm/group.h"

namespace witan::cuda {

inline constexpr int kMostParts = 256;

// out[i] = the reduction over p of parts[p * stride + i], i in [0, elements), in the binary tree of comm/reduce.h and
// its sum types: the same bits as on the CPU. parts, out of `dtype`; at most kMostParts parts.
void reduce_parts(Stream& stream, std::byte* out, const std::byte* parts, int64_t stride, int count, int64_t elements,
                  DType dtype, Reduce reduce);

}  // namespace witan::cuda
