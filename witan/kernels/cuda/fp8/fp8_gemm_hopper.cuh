// Products in e4m3 on Hopper: the kernel of grouped/grouped_gemm_hopper.cuh, which sees pairs of e4m3 as numbers of 16
// bits while it moves them, with consumers of its own. A stage of the ring is one block of 128 steps. Its four
// multiplies begin a sum of their own, since the tensor cores keep few bits of a sum of e4m3 (arXiv:2412.19437,
// section 3.3.2); while they run, the block's scales come to registers, and the sum times its scales is added to the
// tile's in float32. One warpgroup does that while the other's multiplies run.
#pragma once

#include "witan/kernels/cuda/grouped/grouped_gemm_hopper.cuh"
#include "witan/kernels/fp8.h"

namespace witan::kernels::cuda {

inline constexpr int kFp8Columns = 128;  // of a tile: one scale of weights for all of them

// Of rows by weights: a scale for each row and block, and one for the tile's columns and the block.
struct RowScales {
  const float* rows;  // [blocks of steps, rows of the pool]
  int pool;           // rows
  const float* weights;
  int of_expert, of_column, of_step;  // strides, in blocks

  struct Factors {
    float low, high;  // of the thread's row, and of the eighth after it
    __device__ __forceinline__ void add(float (&sums)[kFp8Columns / 2], const float (&fresh)[kFp8Columns / 2]) const {
#pragma unroll
      for (int i = 0; i < kFp8Columns / 2; ++i) sums[i] = fmaf(fresh[i], i % 4 < 2 ? low : high, sums[i]);
    }
  };
  // `row`: of the thread, in the pool. Rows behind it may lie outside; what is computed of them is not stored.
  __device__ __forceinline__ Factors of(const Tile& tile, int row, int block) const {
    const float weight =
        __ldg(weights + tile.expert * of_expert + tile.column / kFp8Columns * of_column + block * of_step);
    const float* const all = rows + static_cast<int64_t>(block) * pool;
    return {__ldg(all + min(row, pool - 1)) * weight, __ldg(all + min(row + 8, pool - 1)) * weight};
  }
};

// Of columns of two matrices, summed over blocks of rows: a scale for each line and block, and for each column.
struct ColumnScales {
  const float *a, *b;  // [blocks, lines], [blocks, columns]
  int lines, columns;

  struct Factors {
    float low, high;
    float2 column[kFp8Columns / 8];  // of the thread's two columns of each 8
    __device__ __forceinline__ void add(float (&sums)[kFp8Columns / 2], const float (&fresh)[kFp8Columns / 2]) const {
#pragma unroll
      for (int i = 0; i < kFp8Columns / 2; ++i) {
        const float of_column = i % 2 == 0 ? column[i / 4].x : column[i / 4].y;
        sums[i] = fmaf(fresh[i] * (i % 4 < 2 ? low : high), of_column, sums[i]);
      }
    }
  };
  __device__ __forceinline__ Factors of(const Tile& tile, int line, int block) const {
    const int64_t at = tile.row / kWgmmaUnit + block;
    const float *const of_lines = a + at * lines, *const of_columns = b + at * columns;
    Factors out{__ldg(of_lines + min(line, lines - 1)), __ldg(of_lines + min(line + 8, lines - 1)), {}};
    const int first = tile.column + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int j = 0; j < kFp8Columns / 8; ++j)
      out.column[j] = __ldg(reinterpret_cast<const float2*>(of_columns + min(first + j * 8, columns - 2)));
    return out;
  }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// sums of the warpgroup's 64 lines over all blocks. `some`: there are such lines, and what they are multiplied with;
// else stages are only passed on.
template <class Shape, class Scales, int kStaging>
__device__ __forceinline__ void multiply_blocks(float (&sums)[kFp8Columns / 2],
                                                const SharedRing<Shape, kStaging>& shared,
                                                Ring<SharedRing<Shape, kStaging>::kStages>& ring, const Scales& scales,
                                                const Tile& tile, int line, int blocks, int consumer, bool some) {
  constexpr uint64_t kAdvance = kWgmmaAdvance<Major::steps>;  // 32 bytes: 32 e4m3
#pragma unroll
  for (int i = 0; i < kFp8Columns / 2; ++i) sums[i] = 0;
  for (int block = 0; block < blocks; ++block, ring.advance()) {
    barrier_wait(shared.full + ring.stage, ring.parity);
    if (!some) {
      release<Shape>(shared.empty + ring.stage);
      continue;
    }
    float fresh[kFp8Columns / 2];
    const uint64_t a = wgmma_operand<Major::steps>(shared.a(ring.stage) + consumer * kWgmmaUnitBytes);
    const uint64_t b = wgmma_operand<Major::steps>(shared.b(ring.stage));
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < 4; ++k) wgmma_e4m3(fresh, a + k * kAdvance, b + k * kAdvance, k);
    wgmma_commit();
    const typename Scales::Factors factors = scales.of(tile, line, block);
    wgmma_wait<0>();
    pin(fresh);
    release<Shape>(shared.empty + ring.stage);
    factors.add(sums, fresh);
  }
}

// One warpgroup: 64 lines of every tile.
template <class Shape, class Operands, class Scales, int kStaging, class AllTiles, class Epilogue>
__device__ void consume_scaled(const SharedRing<Shape, kStaging>& shared, const AllTiles& tiles,
                               const GroupedProduct& product, const Scales& scales, const Epilogue& epilogue, int rank,
                               int consumer) {
  constexpr bool kSum = Operands::kGrouped == Grouped::sum;
  uint8_t* const staging = shared.staging_of(static_cast<int>(threadIdx.x) / 32 - kWarpgroup / 32);
  const int thread_line = static_cast<int>(threadIdx.x) % kWarpgroup / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
  Ring<SharedRing<Shape, kStaging>::kStages> ring;
  const int apart = static_cast<int>(gridDim.x) / Shape::kCluster;
  for (int span = static_cast<int>(blockIdx.x) / Shape::kCluster; span < tiles.spans(); span += apart) {
    const Tile tile = tile_of<Shape, Operands>(tiles, span, rank);
    const int blocks = blocks_of_sum<Operands::kGrouped, Epilogue::kAccumulates>(product, tile);
    const int down = consumer * kWgmmaUnit, lines = lines_left<Operands>(product, tile) - down;
    const int row = (kSum ? tile.line : tile.row) + down;
    float sums[kFp8Columns / 2];
    multiply_blocks<Shape>(sums, shared, ring, scales, tile, row + thread_line, blocks, consumer,
                           lines > 0 && (!kSum || tile.rows > 0));
    if (blocks > 0 && lines > 0)
      epilogue.template operator()<kFp8Columns>(
          sums, {tile.expert, row, lines, tile.column, product.columns - tile.column}, staging);
  }
  epilogue.finish();
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

template <class Shape, class Operands, class Scales, class Epilogue>
__global__ void __launch_bounds__(kGroupedThreads, 1)
    fp8_gemm_kernel(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
                    const __grid_constant__ GroupedProduct product, const __grid_constant__ Scales scales,
                    const __grid_constant__ Epilogue epilogue) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  static_assert(Shape::kParts == 1 && Shape::kColumns == kFp8Columns && !Shape::kTurns);
  extern __shared__ uint8_t memory[];
  const SharedRing<Shape, Epilogue::template kStaging<Shape::kColumns>> shared(memory);
  if (threadIdx.x == 0) shared.init();
  const Tiles<Operands::kGrouped, Shape::kSpanLines, Shape::kSpanColumns> tiles(product, shared.groups);
  const int rank = Shape::kCluster > 1 ? static_cast<int>(rank_in_cluster()) : 0;
  if (Shape::kCluster > 1) cluster_sync();

  const int warpgroup = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (warpgroup == 0) {
    give_registers<40>();
    if (threadIdx.x == 0)
      produce<Shape, Operands, Epilogue::kAccumulates>(shared, tiles, product, a_map, b_map, GatheredRows{}, rank);
  } else {
    take_registers<232>();
    consume_scaled<Shape, Operands>(shared, tiles, product, scales, epilogue, rank, warpgroup - 1);
  }
  // The other block may still load into this one's memory, or arrive at its barriers.
  if (Shape::kCluster > 1) cluster_sync();
#endif
}

// Any place in memory, element by element: for gradients that do not begin at 16 bytes.
template <class T, bool kAdd>
struct StoreEach {
  static constexpr bool kAccumulates = kAdd;
  template <int kColumns>
  static constexpr int kStaging = 0;
  T* out;
  int64_t expert_stride, row_stride;

  template <int kColumns>
  __device__ __forceinline__ void operator()(const float (&sums)[kColumns / 2], const Part& part, uint8_t*) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) % kWarpgroup / 32;
    T* const base = out + part.expert * expert_stride + part.row * row_stride + part.column;
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) {
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
  product.walk = std::max(1, kWalkedColumns / Shape::kSpanColumns);
  const CUtensorMap a_map = tensor_map(a, kWgmmaUnit), b_map = tensor_map(b, Operands::template kBoxB<Shape>);
  launch_persistent<Shape, Epilogue>(stream, fp8_gemm_kernel<Shape, Operands, Scales, Epilogue>, "a product in e4m3",
                                     a_map, b_map, product, scales, epilogue);
}

// Calls body.template operator()<Shape>(): two blocks share a tile of b where experts have lines enough for both.
template <class Body>
void with_fp8_shape(int64_t lines, int64_t experts, const Body& body) {
  if (lines < 256 * experts)
    body.template operator()<TileShape<128, kFp8Columns, Consumers::halves, Multicast::none>>();
  else
    body.template operator()<TileShape<128, kFp8Columns, Consumers::halves, Multicast::b>>();
}

// Throws DeviceError for GPUs, and programs, without Hopper's instructions, and for more groups than the kernel's table
// has room for.
inline void require_fp8(Stream& stream, int64_t groups) {
  require<DeviceError>(is_hopper(stream),
                       "products in e4m3 need a GPU of compute capability 9.0 and a build for it "
                       "(WITAN_CUDA_ARCHITECTURES with 90a-real); set fp8_format = \"none\"");
  require<DeviceError>(groups <= kMostGroups, "products in e4m3 take up to ", kMostGroups, " experts a rank, got ",
                       groups, "; set fp8_format = \"none\", or spread experts over more ranks");
}

}  // namespace witan::kernels::cuda
