#include "witan/kernels/grouped/cuda/grouped_gemm.h"
#include "witan/kernels/grouped/cuda/grouped_shapes.cuh"
#include "witan/kernels/grouped/cuda/grouped_store.cuh"
#include "witan/kernels/pointwise/cuda/activation.cuh"

namespace witan::kernels::cuda {

// Stores sums of paired columns, gates and as many ups, rounded, in h [rows, 2F], and silu(gate) s up of the rounded
// values, as swiglu_forward computes it, in y [rows, F].
template <class T>
struct StoreSwiglu {
  static constexpr bool kAccumulates = false;
  template <int kTileN>
  static constexpr int kStaging = Rows64::kBytes;
  T *h, *y;
  int64_t h_stride, y_stride, F;
  const float* s;  // [rows] or null

  template <int kTileN>
  __device__ __forceinline__ void operator()(const float (&sums)[kTileN / 2], const Part& part,
                                             uint8_t* staging) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, row = static_cast<int>(threadIdx.x) % kWarpgroup / 32 * 16;
    const int rows = part.rows - row, own = lane / 4;
    float weight[2] = {1, 1};
    if (s) {
      if (own < rows) weight[0] = s[part.row + row + own];
      if (own + 8 < rows) weight[1] = s[part.row + row + own + 8];
    }
    T* const gates = h + static_cast<int64_t>(part.row + row) * h_stride + part.column;
    T* const products = y + static_cast<int64_t>(part.row + row) * y_stride + part.column;
    static_assert(kTileN / 2 % Rows64::kColumns == 0);
#pragma unroll
    for (int first = 0; first < kTileN / 2; first += Rows64::kColumns) {
      const int columns = part.columns - first;
      const auto gate = [&](int j, int half) {
        const int i = (first + j * 8) / 2 + half * 2;
        return pack_pair<T>(sums[i], sums[i + 1]);
      };
      const auto up = [&](int j, int half) {
        const int i = kTileN / 4 + (first + j * 8) / 2 + half * 2;
        return pack_pair<T>(sums[i], sums[i + 1]);
      };
      Rows64::store(gates + first, h_stride, rows, columns, staging, gate);
      Rows64::store(gates + F + first, h_stride, rows, columns, staging, up);
      Rows64::store(products + first, y_stride, rows, columns, staging,
                    [&](int j, int half) { return swiglu(gate(j, half), up(j, half), weight[half]); });
    }
  }
  __device__ __forceinline__ void finish() const {}

 private:
  static __device__ __forceinline__ uint32_t swiglu(uint32_t gates, uint32_t ups, float weight) {
    const float2 gate = unpack_pair<T>(gates), up = unpack_pair<T>(ups);
    return pack_pair<T>(Silu::at(gate.x).value * weight * up.x, Silu::at(gate.y).value * weight * up.y);
  }
};

void hopper_grouped_swiglu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& x,
                                   const RowGroups& groups, const Tensor& w, const Tensor& s, const RowIndex& x_rows) {
  dispatch_half(y.dtype(), [&]<class T>() {
    const auto launch = [&]<class Shape, Gathered kGathered>() {
      using Both = OperandLayout<Grouped::m, Major::k, Major::k, Columns::paired, kElementFor<T>, kGathered>;
      launch_grouped_gemm<Shape, Both>(
          stream, x, w, product_of(groups, h.size(0), h.size(1), x.size(1)),
          StoreSwiglu<T>{ptr<T>(h), ptr<T>(y), h.stride(0), y.stride(0), y.size(1), ptr<const float>(s)}, x_rows);
    };
    const auto launch_shape = [&]<class Shape>() {
      x_rows.defined() ? launch.template operator()<Shape, Gathered::a>()
                       : launch.template operator()<Shape, Gathered::none>();
    };
    with_paired_shape(groups.rows_of(h.size(0)), groups.experts(), launch_shape);
  });
}

}  // namespace witan::kernels::cuda
