#include "witan/kernels/grouped/cuda/grouped_gemm.h"
#include "witan/kernels/grouped/cuda/grouped_shapes.cuh"
#include "witan/kernels/grouped/cuda/grouped_store.cuh"
#include "witan/kernels/pointwise/cuda/activation.cuh"

namespace witan::kernels::cuda {
namespace {

// The sums are gradients of activations, rounded to T as they would be stored. From them the epilogue computes and
// stores the gradients of gates and ups, dh = [dgate | dup], as swiglu_backward does, and each row's and tile's part of
// the gradient of the row's weight.
//
// Gates and ups are copied asynchronously, 64 columns at a time, into the warp's staging memory, and their gradients
// back to memory in whole cache lines. There are two buffers: one is computed on while the other is copied, and both
// are copied while the sums are computed.
template <class T>
struct StoreSwigluBackward {
  static constexpr bool kAccumulates = false;
  static constexpr int kPlace = 2 * Rows64::kBytes, kPlaces = 2, kAllPlaces = kPlaces * kPlace;
  static constexpr int kPieces = kSwigluDotColumns / Rows64::kColumns;
  template <int kTileN>
  static constexpr int kStaging = kAllPlaces;
  T* dh;
  const T* h;
  int64_t dh_stride, h_stride, F;
  const float* s;  // [rows] or null
  float* dots;     // [tiles of columns, rows] or null
  int64_t capacity;

  __device__ __forceinline__ void fetch(const Part& part, uint8_t* staging) const {
#pragma unroll
    for (int piece = 0; piece < kPlaces; ++piece) fetch_piece(part, piece, staging);
  }

  template <int kTileN>
  __device__ __forceinline__ void operator()(const float (&sums)[kTileN / 2], const Part& part,
                                             uint8_t* staging) const {
    static_assert(kTileN == kPieces * Rows64::kColumns && kPlaces == 2);
    const int own = first_row() + static_cast<int>(threadIdx.x) % 32 / 4;  // and the 8th after it
    float weight[2] = {1, 1}, dot[2] = {};
    if (s) {
      if (own < part.rows) weight[0] = s[part.row + own];
      if (own + 8 < part.rows) weight[1] = s[part.row + own + 8];
    }
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      if (piece + 1 < kPieces)
        wait_copies<1>();  // for the next piece
      else
        wait_copies<0>();
      __syncwarp();
      if (piece * Rows64::kColumns < part.columns) store_piece<kTileN>(sums, part, piece, weight, dot, staging);
      if (piece + kPlaces < kPieces) fetch_piece(part, piece + kPlaces, staging);
    }
    if (dots) store_dots<kTileN>(dot, part, own);
  }
  __device__ __forceinline__ void finish() const {}

 private:
  // The warp's first row in its part.
  static __device__ __forceinline__ int first_row() {
    return static_cast<int>(threadIdx.x) % kWarpgroup / 32 * 16;
  }

  // Each call commits one group of copies, possibly empty, so that groups in flight can be counted.
  __device__ __forceinline__ void fetch_piece(const Part& part, int piece, uint8_t* staging) const {
    const int first = piece * Rows64::kColumns, columns = part.columns - first;
    const T* const gates = h + static_cast<int64_t>(part.row + first_row()) * h_stride + part.column + first;
    uint8_t* const to = staging + piece % kPlaces * kPlace;
    __syncwarp();  // all lanes have read the previous piece
    if (columns > 0) {
      Rows64::fetch(gates, h_stride, part.rows - first_row(), columns, to);
      Rows64::fetch(gates + F, h_stride, part.rows - first_row(), columns, to + Rows64::kBytes);
    }
    commit_copies();
  }

  template <int kTileN>
  __device__ __forceinline__ void store_piece(const float (&sums)[kTileN / 2], const Part& part, int piece,
                                              const float (&weight)[2], float (&dot)[2], uint8_t* staging) const {
    const int first = piece * Rows64::kColumns, rows = part.rows - first_row(), columns = part.columns - first;
    uint8_t* const at = staging + piece % kPlaces * kPlace;
#pragma unroll
    for (int j = 0; j < Rows64::kColumns / 8; j += 2) {  // in place: sums leave no registers for more at a time
      uint4 gates = Rows64::found(at, j), ups = Rows64::found(at + Rows64::kBytes, j);
      const int i = (first + j * 8) / 2;
      differentiate(gates.x, ups.x, pack_pair<T>(sums[i], sums[i + 1]), weight[0], dot[0]);
      differentiate(gates.y, ups.y, pack_pair<T>(sums[i + 2], sums[i + 3]), weight[1], dot[1]);
      differentiate(gates.z, ups.z, pack_pair<T>(sums[i + 4], sums[i + 5]), weight[0], dot[0]);
      differentiate(gates.w, ups.w, pack_pair<T>(sums[i + 6], sums[i + 7]), weight[1], dot[1]);
      Rows64::lay_out(at, j, gates);
      Rows64::lay_out(at + Rows64::kBytes, j, ups);
    }
    T* const to = dh + static_cast<int64_t>(part.row + first_row()) * dh_stride + part.column + first;
    Rows64::send(to, dh_stride, rows, columns, at);
    Rows64::send(to + F, dh_stride, rows, columns, at + Rows64::kBytes);
  }

  // Replaces gates and ups by their gradients, given the activations' gradients `douts`.
  static __device__ __forceinline__ void differentiate(uint32_t& gates, uint32_t& ups, uint32_t douts, float weight,
                                                       float& dot) {
    const float2 gate = unpack_pair<T>(gates), up = unpack_pair<T>(ups), dout = unpack_pair<T>(douts);
    const auto [value_x, slope_x] = Silu::at(gate.x);
    const auto [value_y, slope_y] = Silu::at(gate.y);
    dot += dout.x * value_x * up.x;
    dot += dout.y * value_y * up.y;
    gates = pack_pair<T>(dout.x * weight * up.x * slope_x, dout.y * weight * up.y * slope_y);
    ups = pack_pair<T>(dout.x * weight * value_x, dout.y * weight * value_y);
  }

  // Each lane of a quad has some columns of both rows.
  template <int kTileN>
  __device__ __forceinline__ void store_dots(const float (&dot)[2], const Part& part, int own) const {
    float* const to = dots + part.column / kTileN * capacity + part.row;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      float sum = dot[k];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      if (threadIdx.x % 4 == 0 && own + k * 8 < part.rows) to[own + k * 8] = sum;
    }
  }
};

constexpr int kDotThreads = 256;

// ds[t] = sum of dots[.., t], in order, for the rows t of expert blockIdx.x.
__global__ void __launch_bounds__(kDotThreads)
    sum_swiglu_dots_kernel(float* ds, const float* dots, int64_t capacity, int tiles, const int64_t* begin,
                           const int64_t* count) {
  const int64_t end = begin[blockIdx.x] + count[blockIdx.x];
  for (int64_t t = begin[blockIdx.x] + blockIdx.y * kDotThreads + threadIdx.x; t < end; t += gridDim.y * kDotThreads) {
    float sum = 0;
    for (int tile = 0; tile < tiles; ++tile) sum += dots[tile * capacity + t];
    ds[t] = sum;
  }
}

void sum_dots(Stream& stream, const Tensor& ds, const Tensor& dots, const RowGroups& groups) {
  const int64_t each = groups.rows_of(ds.size(0)) / std::max<int64_t>(groups.experts(), 1);
  const auto blocks = static_cast<unsigned>(std::clamp<int64_t>(each / kDotThreads, 1, 64));
  sum_swiglu_dots_kernel<<<dim3(static_cast<unsigned>(groups.experts()), blocks), kDotThreads, 0, native(stream)>>>(
      ptr<float>(ds), ptr<const float>(dots), dots.size(1), static_cast<int>(dots.size(0)),
      ptr<const int64_t>(groups.begin), ptr<const int64_t>(groups.count));
}

}  // namespace

void hopper_grouped_swiglu_backward(Stream& stream, const SwigluGradient& to, const Tensor& dots, const Tensor& dy,
                                    const RowGroups& groups, const Tensor& w, const SwigluRows& of,
                                    const RowIndex& dy_rows) {
  const int64_t capacity = to.dh.size(0), F = to.dh.size(1) / 2;
  dispatch_half(to.dh.dtype(), [&]<class T>() {
    const StoreSwigluBackward<T> store{ptr<T>(to.dh),          ptr<const T>(of.h), to.dh.stride(0), of.h.stride(0), F,
                                       ptr<const float>(of.s), ptr<float>(dots),   capacity};
    const auto launch = [&]<Gathered kGathered>() {
      using Both = OperandLayout<Grouped::m, Major::k, Major::mn, Columns::adjacent, kElementFor<T>, kGathered>;
      launch_grouped_gemm<WideTile, Both>(stream, dy, w, product_of(groups, capacity, F, dy.size(1)), store, dy_rows);
    };
    dy_rows.defined() ? launch.template operator()<Gathered::a>() : launch.template operator()<Gathered::none>();
  });
  if (dots.defined()) sum_dots(stream, to.ds, dots, groups);
}

}  // namespace witan::kernels::cuda
