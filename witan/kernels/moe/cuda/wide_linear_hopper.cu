// The float32 operand is first split into bfloat16 parts in scratch memory (see wide_linear.cuh). One kernel computes
// both the forward product and the weight's gradient: its stages hold a tile of x and three of the parts, and the
// products with the first parts are summed separately from the others. The input's gradient needs three of the four
// products of two parts each; it is a single plain product that sums over all of them.
#include "witan/kernels/grouped/cuda/batched_gemm_hopper.cuh"
#include "witan/kernels/moe/cuda/wide_linear.cuh"

namespace witan::kernels::cuda {
namespace {

using wide::Bf16;

constexpr int kParts = 3;
constexpr int kSplitThreads = 256, kSplitColumns = 8;

// Destinations of the parts of a float32 matrix: `part[i]` goes to data[at[i] + row * row_stride + column].
struct SplitTo {
  Bf16* data;
  int64_t row_stride;
  int64_t at[kParts];
  int part[kParts];
};

__global__ void __launch_bounds__(kSplitThreads) split_kernel(const __grid_constant__ SplitTo to, wide::Matrix from) {
  const int packs = from.columns / kSplitColumns;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kSplitThreads, all = from.rows * packs;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kSplitThreads + threadIdx.x; i < all; i += stride) {
    const int64_t row = i / packs;
    const int column = static_cast<int>(i - row * packs) * kSplitColumns;
    const float* const data = from.data + row * from.columns + column;
    Pack<float, 4> halves[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float* const of = data + half * 4;
      halves[half] = from.packed ? load_pack<float, 4>(of) : Pack<float, 4>{of[0], of[1], of[2], of[3]};
    }
    uint32_t pairs[4][kParts];
#pragma unroll
    for (int pair = 0; pair < 4; ++pair)
      wide::split(pairs[pair], halves[pair / 2].at[pair % 2 * 2], halves[pair / 2].at[pair % 2 * 2 + 1]);
#pragma unroll
    for (int copy = 0; copy < kParts; ++copy) {
      Pack<uint32_t, 4> out;
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        const uint32_t(&parts)[kParts] = pairs[pair];
        out.at[pair] = to.part[copy] == 0 ? parts[0] : to.part[copy] == 1 ? parts[1] : parts[2];
      }
      Bf16* const place = to.data + to.at[copy] + row * to.row_stride + column;
      store_pack<uint32_t, 4>(reinterpret_cast<uint32_t*>(place), out);
    }
  }
}

void split(Stream& stream, const SplitTo& to, const Tensor& from) {
  const int64_t blocks = (from.elements() / kSplitColumns + kSplitThreads - 1) / kSplitThreads;
  split_kernel<<<blocks_for(stream, blocks), kSplitThreads, 0, native(stream)>>>(to, wide::matrix(from));
}

// Stores all parts of `from`, one matrix after the other.
void split_apart(Stream& stream, Bf16* to, const Tensor& from) {
  const int64_t each = from.elements();
  split(stream, {to, from.size(1), {0, each, 2 * each}, {0, 1, 2}}, from);
}

// A tile of 128 x 128, with x on one side and the parts of the other operand on the other.
struct WideShape {
  static constexpr int kTileM = 128, kTileN = 128, kSubtiles = kTileM / kSubtile, kCluster = 1;
  static constexpr bool kPingPong = false;
  static constexpr int kStageA = kTileM * kSubtile * 2, kPart = kTileN * kSubtile * 2,
                       kStage = kStageA + kParts * kPart;
};
struct NoStaging {
  template <int kColumns>
  static constexpr int kStaging = 0;
};

// The product of x [M, K] and parts [N, K] each, with K divided into strips.
struct WideProduct {
  int M, N, K, strip_k, strips;

  __host__ __device__ int across() const { return divide_up(N, WideShape::kTileN); }
  __host__ __device__ int down() const { return divide_up(M, WideShape::kTileM); }
  __device__ int tiles() const { return across() * down() * strips; }
};

struct StripTile {
  int m, n, strip, k, blocks;
};

// Consecutive tiles share their rows of M.
__device__ __forceinline__ StripTile strip_tile(const WideProduct& product, int number) {
  const int across = product.across(), row = number / across, strip = row / product.down();
  const int k = strip * product.strip_k;
  const int left = min(product.strip_k, product.K - k);
  return {(row - strip * product.down()) * WideShape::kTileM, (number - row * across) * WideShape::kTileN, strip, k,
          divide_up(left, kSubtile)};
}

// The destination of a sum: out + strip * strip_stride + m * m_stride + n * n_stride.
struct WideOut {
  float* out;
  int64_t strip_stride, m_stride, n_stride;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

using WideRing = SharedRing<WideShape, 0>;

// Runs on one thread. Elements beyond either operand arrive as zeros.
template <Major kMajor>
__device__ void produce_wide(const WideRing& shared, const WideProduct& product, const CUtensorMap& x_map,
                             const CUtensorMap& parts_map) {
  constexpr int kBox = kMajor == Major::k ? WideShape::kTileN : kSubtile;  // columns of b
  prefetch_map(x_map);
  prefetch_map(parts_map);
  Ring<WideRing::kStages> ring;
  for (int number = static_cast<int>(blockIdx.x); number < product.tiles(); number += static_cast<int>(gridDim.x)) {
    const StripTile tile = strip_tile(product, number);
    const int subtiles = min(WideShape::kSubtiles, divide_up(product.M - tile.m, kSubtile));
    for (int block = 0; block < tile.blocks; ++block, ring.advance()) {
      uint64_t* const full = shared.full + ring.stage;
      const int k = tile.k + block * kSubtile;
      barrier_wait(shared.empty + ring.stage, ring.parity ^ 1);
      barrier_arrive_and_expect(full, static_cast<uint32_t>(subtiles * kSubtileBytes + kParts * WideShape::kPart));
      for (int subtile = 0; subtile < subtiles; ++subtile)
        load_box_of<kMajor, false>(shared.a(ring.stage) + subtile * kSubtileBytes, x_map, full,
                                   tile.m + subtile * kSubtile, k, 0);
#pragma unroll
      for (int part = 0; part < kParts; ++part)
#pragma unroll
        for (int column = 0; column < WideShape::kTileN; column += kBox)
          load_box_of<kMajor, false>(shared.b(ring.stage) + part * WideShape::kPart + column * kSubtile * 2, parts_map,
                                     full, tile.n + column, k, part);
    }
  }
}

using WideSums = float[WideShape::kTileN / 2];

// One warpgroup computes 64 rows of a tile. The large and the small products are summed separately: a sum much larger
// than its addends would lose their last bits.
template <Major kMajor>
__device__ __forceinline__ void multiply_wide(WideSums& large, WideSums& small, const WideRing& shared,
                                              Ring<WideRing::kStages>& ring, int blocks, int consumer) {
  constexpr int kColumns = WideShape::kTileN;
  constexpr uint64_t kNextPart = WideShape::kPart >> 4;
  int before = 0;
  for (int block = 0; block < blocks; ++block) {
    barrier_wait(shared.full + ring.stage, ring.parity);
    const uint64_t x = wgmma_operand<kMajor>(shared.a(ring.stage) + consumer * kSubtileBytes);
    const uint64_t parts = wgmma_operand<kMajor>(shared.b(ring.stage));
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < kSubtile / kWgmmaK; ++k) {
      const uint64_t a = x + k * kWgmmaAdvance<kMajor>, b = parts + k * kWgmmaAdvance<kMajor>;
      wgmma<kColumns, kMajor, kMajor>(large, a, b, block | k);
      wgmma<kColumns, kMajor, kMajor>(small, a, b + kNextPart, block | k);
      wgmma<kColumns, kMajor, kMajor>(small, a, b + 2 * kNextPart, 1);
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (block > 0) release<WideShape>(shared.empty + before);
    before = ring.stage;
    ring.advance();
  }
  wgmma_wait<0>();
  pin(large);
  pin(small);
  release<WideShape>(shared.empty + before);
}

// Two adjacent columns are stored together if they are adjacent in memory.
template <Major kMajor>
__device__ __forceinline__ void store_wide(const WideOut& to, const WideProduct& product, const StripTile& tile,
                                           const WideSums& large, const WideSums& small, int consumer) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % 32;
  const int first = tile.m + consumer * kSubtile + thread / 32 * 16 + lane / 4;
  float* const out = to.out + tile.strip * to.strip_stride;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int m = first + half * 8;
    if (m >= product.M) continue;
#pragma unroll
    for (int j = 0; j < WideShape::kTileN / 8; ++j) {
      const int n = tile.n + j * 8 + lane % 4 * 2, at = j * 4 + half * 2;
      if (n >= product.N) continue;
      float* const place = out + m * to.m_stride + n * to.n_stride;
      const float sums[] = {large[at] + small[at], large[at + 1] + small[at + 1]};
      if constexpr (kMajor == Major::k) {
        store_pack<float, 2>(place, {sums[0], sums[1]});
      } else {
        place[0] = sums[0];
        place[to.n_stride] = sums[1];
      }
    }
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

// out = x parts^T, with x [M, K] and parts [3, N, K], or both transposed (Major::mn).
template <Major kMajor>
__global__ void __launch_bounds__(kGroupedThreads, 1)
    wide_product_kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap parts_map,
                        const __grid_constant__ WideProduct product, const __grid_constant__ WideOut to) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint8_t memory[];
  const WideRing shared(memory);
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  const int warpgroup = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (warpgroup == 0) {
    give_registers<40>();
    if (threadIdx.x == 0) produce_wide<kMajor>(shared, product, x_map, parts_map);
    return;
  }
  take_registers<232>();
  Ring<WideRing::kStages> ring;
  for (int number = static_cast<int>(blockIdx.x); number < product.tiles(); number += static_cast<int>(gridDim.x)) {
    const StripTile tile = strip_tile(product, number);
    WideSums large, small;
    multiply_wide<kMajor>(large, small, shared, ring, tile.blocks, warpgroup - 1);
    store_wide<kMajor>(to, product, tile, large, small, warpgroup - 1);
  }
#endif
}

template <Major kMajor>
void launch_wide_product(Stream& stream, const WideProduct& product, const Tensor& x, const MappedMatrices& parts,
                         const WideOut& to) {
  const CUtensorMap x_map = tensor_map(x, kSubtile);
  const CUtensorMap parts_map = tensor_map(parts, kMajor == Major::k ? WideShape::kTileN : kSubtile);
  launch_persistent<WideShape, NoStaging>(stream, wide_product_kernel<kMajor>, "a router's product", x_map, parts_map,
                                          product, to);
}

// Divides the sum over T tokens into just enough strips to fill the GPU: more would write more partial sums.
WideProduct strips_of(int64_t T, int64_t D, int64_t E) {
  constexpr int kBlocks = 128;
  WideProduct product{static_cast<int>(D), static_cast<int>(E), static_cast<int>(T), 0, 0};
  const int chunks = divide_up(product.K, kSubtile);
  const int most = std::max(1, kBlocks / (product.across() * product.down()));
  product.strip_k = divide_up(chunks, most) * kSubtile;
  product.strips = divide_up(product.K, product.strip_k);
  return product;
}

int64_t split_bytes(int64_t elements) {
  return kParts * elements * int64_t{sizeof(Bf16)};
}

}  // namespace

bool takes_wide_hopper(Stream& stream, const Tensor& x, int64_t E) {
  const bool few = std::max({x.size(0), x.size(1), kParts * E}) <= INT32_MAX;
  return is_hopper(stream) && E > 64 && few && can_map(x) && split_bytes(x.size(1) * E) <= Stream::kScratchBytes;
}

bool takes_wide_backward_hopper(Stream& stream, const Tensor& x, int64_t E) {
  if (!takes_wide_hopper(stream, x, E)) return false;
  const int64_t T = x.size(0), D = x.size(1), sums = strips_of(T, D, E).strips * D * E * int64_t{sizeof(float)};
  return split_bytes(T * E) + std::max(split_bytes(D * E), sums) <= Stream::kScratchBytes;
}

void wide_linear_hopper(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& w) {
  const int64_t E = w.size(0), D = w.size(1);
  auto* const parts = reinterpret_cast<Bf16*>(stream.scratch(split_bytes(D * E)));
  split_apart(stream, parts, w);
  const int K = static_cast<int>(D);
  launch_wide_product<Major::k>(stream, {static_cast<int>(x.size(0)), static_cast<int>(E), K, K, 1}, x,
                                {parts, kParts, E, D}, {ptr<float>(y), 0, E, 1});
}

WideStrips wide_linear_strips_hopper(Stream& stream, const Tensor& dy, const Tensor& x) {
  const int64_t T = x.size(0), D = x.size(1), E = dy.size(1);
  const WideProduct product = strips_of(T, D, E);
  const int64_t sums_bytes = product.strips * D * E * int64_t{sizeof(float)};
  auto* const parts = reinterpret_cast<Bf16*>(stream.scratch(split_bytes(T * E) + sums_bytes));
  auto* const sums = reinterpret_cast<float*>(parts + kParts * T * E);
  split_apart(stream, parts, dy);
  launch_wide_product<Major::mn>(stream, product, x, {parts, kParts, T, E}, {sums, E * D, 1, D});
  return {sums, product.strips};
}

void wide_linear_backward_input_hopper(Stream& stream, const Tensor& dx, Write write, const Tensor& dy,
                                       const Tensor& w) {
  const int64_t T = dx.size(0), D = dx.size(1), E = w.size(0), K = kParts * E;
  auto* const dy_parts = reinterpret_cast<Bf16*>(stream.scratch(split_bytes(T * E) + split_bytes(D * E)));
  auto* const w_parts = dy_parts + T * K;
  // The small products come first: dy's second part times w's first, then first times second, then first times first.
  split(stream, {dy_parts, K, {0, E, 2 * E}, {1, 0, 0}}, dy);
  split(stream, {w_parts, D, {0, E * D, 2 * E * D}, {0, 1, 0}}, w);
  using Shape = TileShape<128, 256, Consumers::cooperative, Multicast::none>;
  using Operands = OperandLayout<Grouped::m, Major::k, Major::mn>;
  const CUtensorMap dy_map = tensor_map({dy_parts, 1, T, K}, kSubtile);
  const CUtensorMap w_map = tensor_map({w_parts, 1, K, D}, Operands::template kBoxB<Shape>);
  const BatchedShape shape{1, static_cast<int>(T), static_cast<int>(D), static_cast<int>(K), false};
  const GroupedProduct product{nullptr, nullptr, 1, shape.M, shape.N, shape.K};
  const auto launch = [&]<class Epilogue>(const Epilogue& epilogue) {
    launch_persistent<Shape, Epilogue>(stream, batched_gemm_kernel<Shape, Operands, Epilogue>, "a router's gradient",
                                       dy_map, w_map, shape, product, epilogue);
  };
  if (write == Write::accumulate)
    launch(Add<>{ptr<Bf16>(dx), 0, D});
  else
    launch(Store<Bf16>{ptr<Bf16>(dx), 0, D});
}

}  // namespace witan::kernels::cuda
