// 8-bit products on Hopper: the kernel of grouped/grouped_gemm_hopper.cuh, which moves pairs of 8-bit numbers as
// numbers of 16 bits, with consumers of its own. A stage of the ring is one block of 128 of K. For each 64 rows of a
// warpgroup, four multiplies form a sum of their own, since the tensor cores keep few bits of a sum of e4m3
// (arXiv:2412.19437, section 3.3.2); that sum times its scales is then added to the tile's in float32. One warpgroup
// does so while the other's multiplies run. Neither waits for scales, which are loaded a block ahead, or arrive with
// the operands. Tiles of M = 256 read a third less through the L2 cache than those of 128.
#pragma once

#include "witan/kernels/fp8/fp8.h"
#include "witan/kernels/grouped/cuda/grouped_gemm_hopper.cuh"
#include "witan/kernels/grouped/cuda/grouped_store.cuh"

namespace witan::kernels::cuda {

inline constexpr int kFp8Columns = 128;  // of a tile, all of which share one scale of the weights
using Fp8Sums = float[kFp8Columns / 2];  // per thread, for 64 rows of a warpgroup's tile

// The tile, optionally with room after a stage's operands for the scales of all of its rows and columns.
template <int kTileMOf, Multicast kMulticastOf, bool kStagesScales, Fp8Format kFormatOf>
struct Fp8Shape : TileShape<kTileMOf, kFp8Columns, Consumers::cooperative, kMulticastOf> {
  using Base = TileShape<kTileMOf, kFp8Columns, Consumers::cooperative, kMulticastOf>;
  static constexpr Fp8Format kFormatA = kFormatOf;  // of a; b is e4m3
  static constexpr int kScales = (kTileMOf + kFp8Columns) * static_cast<int>(sizeof(float));
  static constexpr int kStage = Base::kStage + (kStagesScales ? divide_up(kScales, 1024) * 1024 : 0);
};

// A thread's place in a tile: row m and the 8th after it in the 64 rows of the first part; in each further part, the
// rows kApart after those.
struct Fp8Place {
  int m, n;  // in the tile; two columns of each 8
};

// The scales of a product of rows and weights: one per row and block of K, and one per tile's columns and block of K.
struct RowScales {
  static constexpr bool kStaged = false;
  const float* rows;  // [blocks of K, rows of the pool]
  int pool;           // its number of rows
  const float* weights;
  int expert_stride, n_stride, k_stride;  // strides, in blocks

  // A thread's factors, block by block; the next block's are loaded while the current block's multiplies run.
  template <int kParts, int kApart>
  class Reader {
   public:
    // Loads the scales of a tile's first block.
    __device__ __forceinline__ void begin_tile(const RowScales& scales, const Tile& tile, const Fp8Place& place) {
      rows_ = scales.rows;
      weights_ = scales.weights + tile.expert * scales.expert_stride + tile.n / kFp8Columns * scales.n_stride;
      // Rows after the group's last may lie outside the pool; their results are not stored.
#pragma unroll
      for (int i = 0; i < 2 * kParts; ++i)
        at_[i] = min(tile.row + place.m + i / 2 * kApart + i % 2 * 8, scales.pool - 1);
      ask();
    }
    // Called while the block's multiplies run. `more`: whether another block follows.
    __device__ __forceinline__ void begin_block(const RowScales& scales, bool more) {
#pragma unroll
      for (int i = 0; i < 2 * kParts; ++i) factor_[i] = next_[i] * weight_;
      if (!more) return;
      rows_ += scales.pool;
      weights_ += scales.k_stride;
      ask();
    }
    template <int kPart>
    __device__ __forceinline__ void add(Fp8Sums& sums, const Fp8Sums& fresh, const uint8_t*) const {
#pragma unroll
      for (int i = 0; i < kFp8Columns / 2; ++i) sums[i] = fmaf(fresh[i], factor_[2 * kPart + i % 4 / 2], sums[i]);
    }

   private:
    __device__ __forceinline__ void ask() {
#pragma unroll
      for (int i = 0; i < 2 * kParts; ++i) next_[i] = __ldg(rows_ + at_[i]);
      weight_ = __ldg(weights_);
    }
    const float *rows_, *weights_;
    int at_[2 * kParts];
    float next_[2 * kParts], weight_, factor_[2 * kParts];
  };
};

// The scales of a product of two matrices' columns, summed over blocks of rows: one per row m and block, and one per
// column n and block. They arrive with the stage, those of m first.
struct ColumnScales {
  static constexpr bool kStaged = true;
  const float *a, *b;  // [blocks, M], [blocks, N], at 16 bytes
  int M, N;            // multiples of 4

  template <int kTileM>
  struct Loader {
    const ColumnScales& of;
    // An empty sum loads nothing: its block may lie beyond the last.
    __device__ __forceinline__ int rows_of(const Tile& tile, int left) const {
      return tile.rows > 0 ? max(0, min(kTileM, left)) : 0;
    }
    __device__ __forceinline__ int columns_of(const Tile& tile) const {
      return tile.rows > 0 ? max(0, min(kFp8Columns, of.N - tile.n)) : 0;
    }
    __device__ __forceinline__ uint32_t bytes(const Tile& tile, int left) const {
      return static_cast<uint32_t>((rows_of(tile, left) + columns_of(tile)) * static_cast<int>(sizeof(float)));
    }
    __device__ __forceinline__ void load(uint8_t* to, uint64_t* barrier, const Tile& tile, int left, int block) const {
      const int64_t at = tile.row / kSubtile + block;
      const int some = rows_of(tile, left), across = columns_of(tile);
      constexpr uint32_t kEach = sizeof(float);
      if (some > 0) bulk_load(to, of.a + at * of.M + tile.m, static_cast<uint32_t>(some) * kEach, barrier);
      if (across > 0)
        bulk_load(to + kTileM * kEach, of.b + at * of.N + tile.n, static_cast<uint32_t>(across) * kEach, barrier);
    }
  };

  template <int kParts, int kApart>
  class Reader {
   public:
    __device__ __forceinline__ void begin_tile(const ColumnScales&, const Tile&, const Fp8Place& place) {
      place_ = place;
    }
    __device__ __forceinline__ void begin_block(const ColumnScales&, bool) const {}
    // Rows and columns beyond M and N have undefined scales and sums, which are not stored.
    template <int kPart>
    __device__ __forceinline__ void add(Fp8Sums& sums, const Fp8Sums& fresh, const uint8_t* staged) const {
      const float* const m = reinterpret_cast<const float*>(staged) + place_.m + kPart * kApart;
      const float* const column = reinterpret_cast<const float*>(staged) + kParts * kApart + place_.n;
      const float low = m[0], high = m[8];
#pragma unroll
      for (int i = 0; i < kFp8Columns / 2; i += 4) {
        const float2 two = *reinterpret_cast<const float2*>(column + i * 2);
        sums[i] = fmaf(fresh[i] * low, two.x, sums[i]);
        sums[i + 1] = fmaf(fresh[i + 1] * low, two.y, sums[i + 1]);
        sums[i + 2] = fmaf(fresh[i + 2] * high, two.x, sums[i + 2]);
        sums[i + 3] = fmaf(fresh[i + 3] * high, two.y, sums[i + 3]);
      }
    }

   private:
    Fp8Place place_;
  };
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The four multiplies of one part and block, which form a sum of their own.
template <Fp8Format kFormatA>
__device__ __forceinline__ void multiply_block(Fp8Sums& fresh, uint64_t a, uint64_t b) {
  constexpr uint64_t kAdvance = kWgmmaAdvance<Major::k>;  // 32 bytes: 32 e4m3
  wgmma_begin();
#pragma unroll
  for (int k = 0; k < 4; ++k) wgmma_fp8<kFormatA>(fresh, a + k * kAdvance, b + k * kAdvance, k);
  wgmma_commit();
}

// Sums all blocks for the first kSome of the warpgroup's parts, of 64 rows each; with none, stages are only released.
// `reader` has begun the tile.
template <int kSome, class Shape, class Scales, class Reader, int kStaging>
__device__ __forceinline__ void multiply_blocks(Fp8Sums (&sums)[Shape::kParts],
                                                const SharedRing<Shape, kStaging>& shared,
                                                Ring<SharedRing<Shape, kStaging>::kStages>& ring, const Scales& scales,
                                                Reader& reader, int blocks, int consumer) {
#pragma unroll
  for (int part = 0; part < Shape::kParts; ++part)
#pragma unroll
    for (int i = 0; i < kFp8Columns / 2; ++i) sums[part][i] = 0;
  if constexpr (kSome == 0) {
    for (int block = 0; block < blocks; ++block, ring.advance()) {
      barrier_wait(shared.full + ring.stage, ring.parity);
      release<Shape>(shared.empty + ring.stage);
    }
  } else {
    const uint64_t first_a = wgmma_operand<Major::k>(shared.a(0) + consumer * kSubtileBytes),
                   first_b = wgmma_operand<Major::k>(shared.b(0));
    for (int block = 0; block < blocks; ++block, ring.advance()) {
      const uint64_t stage = static_cast<uint64_t>(ring.stage * (Shape::kStage >> 4));
      const uint8_t* const staged = shared.b(ring.stage) + Shape::kStageB;
      Fp8Sums fresh;
      barrier_wait(shared.full + ring.stage, ring.parity);
      const auto part = [&]<int kPart>() {
        constexpr uint64_t kDown = kPart * (Shape::kPartsApart * kSubtileBytes >> 4);
        multiply_block<Shape::kFormatA>(fresh, first_a + stage + kDown, first_b + stage);
        if (kPart == 0) reader.begin_block(scales, block + 1 < blocks);
        wgmma_wait<0>();
        pin(fresh);
        if (!Scales::kStaged && kPart == kSome - 1) release<Shape>(shared.empty + ring.stage);
        reader.template add<kPart>(sums[kPart], fresh, staged);
      };
      part.template operator()<0>();
      if constexpr (kSome > 1) part.template operator()<1>();
      if (Scales::kStaged) release<Shape>(shared.empty + ring.stage);
    }
  }
}

// One warpgroup computes every other 64 rows of every tile.
template <class Shape, class Operands, class Scales, int kStaging, class AllTiles, class Epilogue>
__device__ void consume_scaled(const SharedRing<Shape, kStaging>& shared, const AllTiles& tiles,
                               const GroupedProduct& product, const Scales& scales, const Epilogue& epilogue, int rank,
                               int consumer) {
  constexpr bool kSum = Operands::kGrouped == Grouped::sum;
  constexpr int kApart = Shape::kPartsApart * kSubtile;
  uint8_t* const staging = shared.staging_of(static_cast<int>(threadIdx.x) / 32 - kWarpgroup / 32);
  const int lane = static_cast<int>(threadIdx.x) % 32, down = consumer * kSubtile;
  const Fp8Place place{down + static_cast<int>(threadIdx.x) % kWarpgroup / 32 * 16 + lane / 4, lane % 4 * 2};
  Ring<SharedRing<Shape, kStaging>::kStages> ring;
  const int first = static_cast<int>(blockIdx.x) / Shape::kCluster;
  const int apart = static_cast<int>(gridDim.x) / Shape::kCluster;
  typename Scales::template Reader<Shape::kParts, kApart> reader;
  const auto begin_tile = [&](int cluster_tile) {
    if (cluster_tile >= tiles.cluster_tiles()) return Tile{};
    const Tile tile = tile_of<Shape, Operands>(tiles, cluster_tile, rank);
    if (tile.n < product.N) reader.begin_tile(scales, tile, place);
    return tile;
  };
  Tile next = begin_tile(first);
  for (int cluster_tile = first; cluster_tile < tiles.cluster_tiles(); cluster_tile += apart) {
    const Tile tile = next;
    const int blocks = k_blocks<Operands::kGrouped, Epilogue::kAccumulates>(product, tile);
    // The second tile of a cluster tile may have no columns.
    const bool columns = tile.n < product.N;
    const int M = columns ? m_left<Operands>(product, tile) - down : 0;
    const int multiplied = kSum && tile.rows <= 0 ? 0 : M;
    Fp8Sums sums[Shape::kParts];
    if (multiplied > (Shape::kParts - 1) * kApart)
      multiply_blocks<Shape::kParts, Shape>(sums, shared, ring, scales, reader, blocks, consumer);
    else if (Shape::kParts > 1 && multiplied > 0)
      multiply_blocks<1, Shape>(sums, shared, ring, scales, reader, blocks, consumer);
    else
      multiply_blocks<0, Shape>(sums, shared, ring, scales, reader, blocks, consumer);
    next = begin_tile(cluster_tile + apart);  // its scales are loaded while results are stored
#pragma unroll
    for (int part = 0; part < Shape::kParts; ++part) {
      const int left = M - part * kApart;
      if (blocks == 0 || left <= 0) break;
      epilogue.template operator()<kFp8Columns>(
          sums[part],
          {tile.expert, (kSum ? tile.m : tile.row) + down + part * kApart, left, tile.n, product.N - tile.n}, staging);
    }
  }
  epilogue.finish();
}

// The data that the producer copies into a stage beside the operands.
template <class Shape>
__device__ __forceinline__ NothingBeside beside(const RowScales&) {
  return {};
}
template <class Shape>
__device__ __forceinline__ ColumnScales::Loader<Shape::kTileM> beside(const ColumnScales& scales) {
  return {scales};
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

template <class Shape, class Operands, class Scales, class Epilogue>
__global__ void __launch_bounds__(kGroupedThreads, 1)
    fp8_gemm_kernel(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
                    const __grid_constant__ GroupedProduct product, const __grid_constant__ Scales scales,
                    const __grid_constant__ Epilogue epilogue) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  static_assert(Shape::kTileN == kFp8Columns && !Shape::kPingPong);
  extern __shared__ uint8_t memory[];
  const SharedRing<Shape, Epilogue::template kStaging<Shape::kTileN>> shared(memory);
  if (threadIdx.x == 0) shared.init();
  const Tiles<Operands::kGrouped, Shape::kClusterM, Shape::kClusterN> tiles(product, shared.groups);
  const int rank = Shape::kCluster > 1 ? static_cast<int>(rank_in_cluster()) : 0;
  if (Shape::kCluster > 1) cluster_sync();

  const int warpgroup = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (warpgroup == 0) {
    give_registers<40>();
    if (threadIdx.x == 0)
      produce<Shape, Operands, Epilogue::kAccumulates>(shared, tiles, product, a_map, b_map, GatheredRows{}, rank,
                                                       beside<Shape>(scales));
  } else {
    take_registers<232>();
    consume_scaled<Shape, Operands>(shared, tiles, product, scales, epilogue, rank, warpgroup - 1);
  }
  // The other block may still load into this one's memory, or arrive at its barriers.
  if (Shape::kCluster > 1) cluster_sync();
#endif
}

// Stores to any address, element by element, for gradients that are not aligned to 16 bytes.
template <class T, bool kAdd>
struct StoreEach {
  static constexpr bool kAccumulates = kAdd;
  template <int kTileN>
  static constexpr int kStaging = 0;
  T* out;
  int64_t expert_stride, row_stride;

  template <int kTileN>
  __device__ __forceinline__ void operator()(const float (&sums)[kTileN / 2], const Part& part, uint8_t*) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) % kWarpgroup / 32;
    T* const base = out + part.expert * expert_stride + part.row * row_stride + part.column;
#pragma unroll
    for (int i = 0; i < kTileN / 2; ++i) {
      const int row = warp * 16 + lane / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      if (row >= part.rows || column >= part.columns) continue;
      T& to = base[row * row_stride + column];
      to = convert<T>((kAdd ? convert<float>(to) : 0.0F) + sums[i]);
    }
  }
  __device__ __forceinline__ void finish() const {}
};

template <class Shape, class Operands, class Scales, class Epilogue>
void launch_fp8_gemm(Stream& stream, const Tensor& a, const Tensor& b, GroupedProduct product, const Scales& scales,
                     const Epilogue& epilogue) {
  constexpr int kWalkedColumns = 2048;
  product.walk = std::max(1, kWalkedColumns / Shape::kClusterN);
  const CUtensorMap a_map = tensor_map(a, kSubtile), b_map = tensor_map(b, Operands::template kBoxB<Shape>);
  launch_persistent<Shape, Epilogue>(stream, fp8_gemm_kernel<Shape, Operands, Scales, Epilogue>, "a product in 8 bits",
                                     a_map, b_map, product, scales, epilogue);
}

template <class Scales, Fp8Format kFormatA>
using Fp8Narrow = Fp8Shape<128, Multicast::none, Scales::kStaged, kFormatA>;
template <class Scales, Fp8Format kFormatA>
using Fp8Wide = Fp8Shape<256, Multicast::a, Scales::kStaged, kFormatA>;  // two blocks share a

// Calls body.template operator()<Shape>() for results [M of all experts together, columns].
template <class Scales, Fp8Format kFormatA, class Body>
void with_fp8_shape_of(int64_t M, int64_t experts, int64_t columns, const Body& body) {
  if (M < 256 * experts || columns <= kFp8Columns)
    body.template operator()<Fp8Narrow<Scales, kFormatA>>();
  else
    body.template operator()<Fp8Wide<Scales, kFormatA>>();
}
template <class Scales, class Body>
void with_fp8_shape(Fp8Format format_a, int64_t M, int64_t experts, int64_t columns, const Body& body) {
  if (format_a == Fp8Format::e4m3)
    with_fp8_shape_of<Scales, Fp8Format::e4m3>(M, experts, columns, body);
  else
    with_fp8_shape_of<Scales, Fp8Format::e5m2>(M, experts, columns, body);
}

// Launches fp8_product() (kernels/fp8/fp8.h) with tiles of one shape.
template <class Shape>
void launch_fp8_product(Stream& stream, const Tensor& y, const Fp8Product& product, const RowGroups& groups) {
  using Bf16 = __nv_bfloat16;
  using Both = OperandLayout<Grouped::m, Major::k, Major::k>;
  const Tensor &x = product.rows.values, &w = product.matrices(), &scales = product.weights.scales;
  const bool grouped = groups.begin.defined();
  const int across = static_cast<int>(scales.size(2)), expert_stride = static_cast<int>(scales.size(1)) * across;
  const RowScales factors{
      ptr<float>(product.rows.scales), static_cast<int>(x.size(0)), ptr<float>(scales), expert_stride,
      product.turned ? 1 : across,     product.turned ? across : 1};
  const GroupedProduct of{grouped ? groups.begin.data<int64_t>() : nullptr,
                          grouped ? groups.count.data<int64_t>() : nullptr,
                          static_cast<int>(w.size(0)),
                          static_cast<int>(y.size(0)),
                          static_cast<int>(y.size(1)),
                          static_cast<int>(x.size(1) / 2)};
  launch_fp8_gemm<Shape, Both>(stream, x, w, of, factors, Store<Bf16>{ptr<Bf16>(y), 0, y.stride(0)});
}

// Launches fp8_weight_gradient() (kernels/fp8/fp8.h) with tiles of one shape.
template <class Shape, class Epilogue>
void launch_fp8_weight_gradient(Stream& stream, const Tensor& dw, const Fp8Columns& dy, const Fp8Columns& x,
                                const RowGroups& groups) {
  using Both = OperandLayout<Grouped::sum, Major::k, Major::k>;
  const Epilogue store{ptr<std::remove_pointer_t<decltype(Epilogue::out)>>(dw), dw.stride(0), dw.stride(1)};
  const bool grouped = groups.begin.defined();
  GroupedProduct product{grouped ? groups.begin.data<int64_t>() : nullptr,
                         grouped ? groups.count.data<int64_t>() : nullptr,
                         static_cast<int>(dw.size(0)),
                         static_cast<int>(dw.size(1)),
                         static_cast<int>(dw.size(2)),
                         static_cast<int>(x.values.size(1) / 2)};
  product.unit = kSubtile;  // pairs of rows per block
  const ColumnScales scales{ptr<float>(dy.scales), ptr<float>(x.scales), product.M, product.N};
  assert(reinterpret_cast<uintptr_t>(scales.a) % 16 == 0 && reinterpret_cast<uintptr_t>(scales.b) % 16 == 0);
  launch_fp8_gemm<Shape, Both>(stream, dy.values, x.values, product, scales, store);
}

// Throws DeviceError if the GPU or the program lacks Hopper's instructions, or if there are more groups than the
// kernel's table holds.
inline void require_fp8(Stream& stream, int64_t groups) {
  require<DeviceError>(is_hopper(stream),
                       "products in 8 bits need a GPU of compute capability 9.0 and a build for it "
                       "(WITAN_CUDA_ARCHITECTURES with 90a-real); set fp8_format = \"none\"");
  require<DeviceError>(groups <= kMostGroups, "products in 8 bits take up to ", kMostGroups, " experts a rank, got ",
                       groups, "; set fp8_format = \"none\", or spread experts over more ranks");
}

}  // namespace witan::kernels::cuda
