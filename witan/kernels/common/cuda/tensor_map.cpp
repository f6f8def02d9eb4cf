#include "witan/kernels/common/cuda/tensor_map.h"

#include <array>
#include <cassert>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/tensor/cuda/stream.h"

namespace witan::kernels::cuda {
namespace {

// Looks up the driver's function. The driver is not linked, so that programs start on machines without one.
auto encoder() {
  static const auto function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    witan::cuda::check(
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result),
        "looking for cuTensorMapEncodeTiled");
    if (found == nullptr) throw DeviceError("the driver has no cuTensorMapEncodeTiled: update it");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  return function;
}

// Encodes a map of 16-bit numbers: sizes from the innermost dim on, and the strides of the other dims in bytes.
CUtensorMap encoded(const void* data, const std::array<cuuint64_t, 3>& sizes, const std::array<cuuint64_t, 2>& strides,
                    int rows) {
  assert(rows <= 256);
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(rows), 1}, steps[] = {1, 1, 1};
  CUtensorMap map{};
  // Bits are copied, so bfloat16's type serves float16 too. The driver takes a pointer to non-const memory even for
  // data that is only read.
  const CUresult status =
      encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(data), sizes.data(), strides.data(), box,
                steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    throw DeviceError(cat("a tensor map of ", sizes[2], " matrices [", sizes[1], ", ", sizes[0],
                          "] was refused: ", static_cast<int>(status)));
  return map;
}

}  // namespace

bool can_map(const Tensor& matrices) {
  const int dims = matrices.shape().dims();
  const int64_t size = size_of(matrices.dtype());
  if (size > 2 || matrices.elements() == 0 || matrices.stride(dims - 1) != 1) return false;
  bool whole = reinterpret_cast<uintptr_t>(matrices.raw()) % 16 == 0;
  for (int dim = 0; dim + 1 < dims; ++dim) whole = whole && matrices.stride(dim) * size % 16 == 0;
  return whole;
}

CUtensorMap tensor_map(const Tensor& matrices, int rows) {
  assert(can_map(matrices));
  const int dims = matrices.shape().dims();
  const bool sliced = dims == 3;
  const int64_t size = size_of(matrices.dtype());
  const auto size_at = [&](int dim) { return static_cast<cuuint64_t>(matrices.size(dim)); };
  const auto stride = [&](int dim) { return static_cast<cuuint64_t>(matrices.stride(dim) * size); };
  return encoded(
      matrices.raw(),
      {static_cast<cuuint64_t>(matrices.size(dims - 1) * size / 2), size_at(dims - 2), sliced ? size_at(0) : 1},
      {stride(dims - 2), stride(sliced ? 0 : dims - 2)}, rows);
}

CUtensorMap tensor_map(const MappedMatrices& matrices, int rows) {
  const auto columns = static_cast<cuuint64_t>(matrices.columns), lines = static_cast<cuuint64_t>(matrices.rows);
  const auto apart = static_cast<cuuint64_t>(matrices.rows_apart > 0 ? matrices.rows_apart : matrices.rows);
  return encoded(matrices.data, {columns, lines, static_cast<cuuint64_t>(matrices.slices)},
                 {columns * 2, apart * columns * 2}, rows);
}

}  // namespace witan::kernels::cuda
