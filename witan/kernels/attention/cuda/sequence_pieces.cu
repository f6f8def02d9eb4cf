#include "witan/kernels/attention/cuda/sequence_pieces.cuh"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kFlight = 4;  // units per thread, all loaded before the first is stored

struct PieceTargets {
  std::byte* to[kMostPieceCopies];
};

template <class Unit>
__global__ void __launch_bounds__(kThreads)
    copy_pieces_kernel(const __grid_constant__ PieceUnits units, const __grid_constant__ PieceTargets targets) {
  Unit held[kFlight];
  Unit* there[kFlight];
  const uint32_t begin = blockIdx.x * (kThreads * kFlight) + threadIdx.x;
#pragma unroll
  for (int f = 0; f < kFlight; ++f) {
    const uint32_t i = begin + f * kThreads;
    if (i >= units.all) continue;
    const PieceUnit unit = units.find(i);
    held[f] = reinterpret_cast<const Unit*>(units.source[unit.copy])[units.from[unit.copy].at(unit.nth, unit)];
    there[f] = reinterpret_cast<Unit*>(targets.to[unit.copy]) + units.to[unit.copy].at(unit.nth, unit);
  }
#pragma unroll
  for (int f = 0; f < kFlight; ++f)
    if (begin + f * kThreads < units.all) *there[f] = held[f];
}

// A matrix of heads, in packs.
struct ShareRows {
  int64_t y, x;  // from row to row
  uint32_t heads, width;
  int shares;
};

// N elements of a head at a time.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) sum_shares_kernel(T* y, const T* x, int64_t packs, const ShareRows rows) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < packs; i += stride) {
    const int64_t head = i / rows.width, token = head / rows.heads, nth = head - token * rows.heads,
                  within = i - head * rows.width;
    const int64_t from = token * rows.x + nth * rows.shares * rows.width + within;
    Acc<T> sum[N];
    for (int share = 0; share < rows.shares; ++share) {
      const Pack<T, N> part = load_pack<T, N>(x + (from + int64_t{share} * rows.width) * N);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const auto value = convert<Acc<T>>(part.at[j]);
        sum[j] = share == 0 ? value : sum[j] + value;
      }
    }
    Pack<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) out.at[j] = convert<T>(sum[j]);
    store_pack<T, N>(y + (token * rows.y + nth * rows.width + within) * N, out);
  }
}

}  // namespace

void copy_pieces(Stream& stream, const std::vector<PieceCopy>& copies, int64_t ranks) {
  if (copies[0].size.elements() == 0) return;
  PieceTargets targets{};
  for (size_t i = 0; i < copies.size(); ++i) targets.to[i] = copies[i].to.raw();
  with_piece_unit(piece_bits(copies), [&]<class Unit>() {
    const PieceUnits units = piece_units<Unit>(copies, ranks);
    const unsigned blocks = (units.all + kThreads * kFlight - 1) / (kThreads * kFlight);
    copy_pieces_kernel<Unit><<<blocks, kThreads, 0, native(stream)>>>(units, targets);
  });
}

void sum_shares(Stream& stream, const Tensor& y, const Tensor& x, int64_t w) {
  if (y.elements() == 0) return;
  assert(x.size(0) == y.size(0) && y.size(1) % w == 0 && x.size(1) % y.size(1) == 0 && y.dtype() == x.dtype());
  assert(y.stride(1) == 1 && x.stride(1) == 1);
  dispatch_device(y.dtype(), [&]<class T>() {
    const auto launch = [&]<int N>() {
      const int64_t packs = y.elements() / N;
      const ShareRows rows{y.stride(0) / N, x.stride(0) / N, static_cast<uint32_t>(y.size(1) / w),
                           static_cast<uint32_t>(w / N), static_cast<int>(x.size(1) / y.size(1))};
      sum_shares_kernel<T, N><<<blocks_for(stream, (packs + kThreads - 1) / kThreads), kThreads, 0, native(stream)>>>(
          ptr<T>(y), ptr<const T>(x), packs, rows);
    };
    const auto bits = reinterpret_cast<uintptr_t>(y.raw()) | reinterpret_cast<uintptr_t>(x.raw());
    if (bits % 16 == 0 && (w | y.stride(0) | x.stride(0)) % kPack<T> == 0)
      launch.template operator()<kPack<T>>();
    else
      launch.template operator()<1>();
  });
}

}  // namespace witan::kernels::cuda
