// Products of a batch of matrices on Hopper, in float16 with float32 sums, computed by the pipeline of the grouped
// products: every matrix of the batch is a group of equal M (or K). Of a symmetric product, only the tiles on and below
// the diagonal are computed, and those below it are stored twice.
//
// Float16 numbers are kept in tensors of bfloat16, whose memory they are computed in.
#pragma once

#include <cuda_fp16.h>

#include "witan/kernels/grouped/cuda/grouped_store.cuh"

namespace witan::kernels::cuda {

// The sizes of a batch. `a` stacks the M rows of all matrices or, if K runs over rows of memory, their K rows.
struct BatchedShape {
  int matrices, M, N, K;
  bool lower;  // tiles above the diagonal are left out
};

template <Grouped kGrouped, int kClusterM, int kClusterN>
class BatchedTiles {
 public:
  __device__ explicit BatchedTiles(const BatchedShape& shape)
      : shape_(shape),
        across_(divide_up(shape.N, kClusterN)),
        each_(shape.lower ? across_ * (across_ + 1) / 2 : divide_up(shape.M, kClusterM) * across_) {}

  __device__ int cluster_tiles() const { return shape_.matrices * each_; }

  __device__ Tile at(int cluster_tile) const {
    const int matrix = cluster_tile / each_, rest = cluster_tile - matrix * each_;
    int down = rest / across_;
    if (shape_.lower) {  // row by row of the triangle: the last row that begins at or before
      down = static_cast<int>((sqrtf(static_cast<float>(8 * rest + 1)) - 1) / 2);
      while (down * (down + 1) / 2 > rest) --down;
      while ((down + 1) * (down + 2) / 2 <= rest) ++down;
    }
    const int before = shape_.lower ? down * (down + 1) / 2 : down * across_;
    const int m = down * kClusterM, column = (rest - before) * kClusterN;
    if constexpr (kGrouped == Grouped::m)
      return {matrix, matrix * shape_.M + m, shape_.M - m, m, column};
    else
      return {matrix, matrix * shape_.K, shape_.K, m, column};
  }

 private:
  BatchedShape shape_;
  int across_, each_;
};

// Stores alpha sums + beta c + identity I for square matrices, rounded to float16; c, unless null, has the result's
// shape, with rows and columns in whole packs. Tiles below the diagonal are stored above it too.
template <Grouped kGrouped>
struct SymmetricStore {
  static constexpr bool kAccumulates = false;
  template <int kTileN>
  static constexpr int kStaging = Rows64::kBytes;
  __nv_bfloat16* out;
  const __nv_bfloat16* c;
  int size;
  float alpha, beta, identity;

  // `sums` are accumulators of running products: if they were written here, each product would wait for the previous
  // one.
  template <int kTileN>
  __device__ __forceinline__ void operator()(const float (&sums)[kTileN / 2], const Part& part,
                                             uint8_t* staging) const {
    const int64_t first_of_matrix = static_cast<int64_t>(part.expert) * size * size;
    const int warp_row = static_cast<int>(threadIdx.x) % kWarpgroup / 32 * 16;
    const int m = part.row - (kGrouped == Grouped::m ? part.expert * size : 0);
    const int row = m + warp_row, rows = part.rows - warp_row;
    const bool mirrored = m >= part.column + kTileN;  // a tile on the diagonal is computed whole
    __nv_bfloat16* const matrix = out + first_of_matrix;
#pragma unroll
    for (int first = 0; first < kTileN; first += Rows64::kColumns) {
      uint32_t pairs[Rows64::kColumns / 8][2];  // columns 8 j and 8 j + 1, in the lane's row of each half
      combine<kTileN>(pairs, sums, first, first_of_matrix, row, part.column);
      const auto pair = [&](int j, int half) { return pairs[j][half]; };
      Rows64::store(matrix + static_cast<int64_t>(row) * size + part.column + first, size, rows, part.columns - first,
                    staging, pair);
      if (mirrored)
        store_mirrored(matrix + static_cast<int64_t>(part.column + first) * size + row, rows, staging, pair);
    }
  }
  __device__ __forceinline__ void finish() const {}

 private:
  // Combines 64 columns from `first` on. The lanes of a quad read 16 adjacent bytes of c each, and exchange them for
  // the elements that match their sums.
  template <int kTileN>
  __device__ __forceinline__ void combine(uint32_t (&pairs)[Rows64::kColumns / 8][2], const float (&sums)[kTileN / 2],
                                          int first, int64_t first_of_matrix, int row, int column) const {
    constexpr int kQuadColumns = 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    uint4 packs[2][Rows64::kColumns / kQuadColumns] = {};
    if (c != nullptr) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int part = 0; part < Rows64::kColumns / kQuadColumns; ++part) {
          const int own_row = row + lane / 4 + half * 8, read = column + first + part * kQuadColumns + lane % 4 * 8;
          if (own_row < size && read < size)
            packs[half][part] =
                *reinterpret_cast<const uint4*>(c + first_of_matrix + static_cast<int64_t>(own_row) * size + read);
        }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int own_row = row + lane / 4 + half * 8;
#pragma unroll
      for (int part = 0; part < Rows64::kColumns / kQuadColumns; ++part) {
        uint32_t words[4] = {packs[half][part].x, packs[half][part].y, packs[half][part].z, packs[half][part].w};
        if (c != nullptr) transpose_in_quad(words);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 before = __half22float2(reinterpret_cast<const __half2&>(words[i]));
          const int from = first + part * kQuadColumns + i * 8, at = from / 2 + half * 2,
                    own = column + from + lane % 4 * 2;
          pairs[part * 4 + i][half] =
              pack_pair<__half>(alpha * sums[at] + beta * before.x + (own == own_row ? identity : 0),
                                alpha * sums[at + 1] + beta * before.y + (own + 1 == own_row ? identity : 0));
        }
      }
    }
  }

  // Stores 64 columns of a warp's 16 rows as 64 rows of 16. The halves of these rows of 32 bytes are swapped in every
  // other four rows, so that neither reads nor writes have bank conflicts.
  template <class Pair>
  __device__ __forceinline__ void store_mirrored(__nv_bfloat16* to, int rows, uint8_t* staging,
                                                 const Pair& pair) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const auto at = [&](int column, int piece) { return staging + column * 32 + (piece ^ (column >> 2 & 1)) * 16; };
    __syncwarp();
#pragma unroll
    for (int j = 0; j < Rows64::kColumns / 8; j += 2)
      store_transposed(at((j + lane / 16) * 8 + lane % 8, lane / 8 % 2), pair(j, 0), pair(j, 1), pair(j + 1, 0),
                       pair(j + 1, 1));
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = i * 16 + lane / 2, piece = lane % 2;
      const auto pack = load_pack<__nv_bfloat16, 8>(reinterpret_cast<__nv_bfloat16*>(at(column, piece)));
      if (piece * 8 < rows) store_pack(to + static_cast<int64_t>(column) * size + piece * 8, pack);
    }
  }
};

// Stores scale times the sums, rounded to float16 or, if `last`, to bfloat16.
struct ScaledStore {
  static constexpr bool kAccumulates = false;
  template <int kTileN>
  static constexpr int kStaging = Rows64::kBytes;
  __nv_bfloat16* out;
  int64_t row_stride;
  float scale;
  bool last;

  template <int kTileN>
  __device__ __forceinline__ void operator()(const float (&sums)[kTileN / 2], const Part& part,
                                             uint8_t* staging) const {
    const int row = static_cast<int>(threadIdx.x) % kWarpgroup / 32 * 16;
    __nv_bfloat16* const to = out + (part.row + row) * row_stride + part.column;
#pragma unroll
    for (int first = 0; first < kTileN; first += Rows64::kColumns)
      Rows64::store(to + first, row_stride, part.rows - row, part.columns - first, staging, [&](int j, int half) {
        const int i = (first + j * 8) / 2 + half * 2;
        const float low = scale * sums[i], high = scale * sums[i + 1];
        return last ? pack_pair<__nv_bfloat16>(low, high) : pack_pair<__half>(low, high);
      });
  }
  __device__ __forceinline__ void finish() const {}
};

template <class Shape, class Operands, class Epilogue>
__global__ void __launch_bounds__(kGroupedThreads, 1)
    batched_gemm_kernel(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
                        const __grid_constant__ BatchedShape shape, const __grid_constant__ GroupedProduct product,
                        const __grid_constant__ Epilogue epilogue) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint8_t memory[];
  const SharedRing<Shape, Epilogue::template kStaging<Shape::kTileN>> shared(memory);
  if (threadIdx.x == 0) shared.init();
  const BatchedTiles<Operands::kGrouped, Shape::kClusterM, Shape::kClusterN> tiles(shape);
  __syncthreads();
  run_block<Shape, Operands>(shared, tiles, product, a_map, b_map, epilogue);
#endif
}

template <class Shape, class Operands, class Epilogue>
void launch_batched_gemm(Stream& stream, const Tensor& a, const Tensor& b, const BatchedShape& shape,
                         const Epilogue& epilogue) {
  assert(!shape.lower || (Shape::kClusterM == Shape::kClusterN && shape.M == shape.N));
  assert(a.size(0) <= INT32_MAX);
  const CUtensorMap a_map = tensor_map(a, kSubtile), b_map = tensor_map(b, Operands::template kBoxB<Shape>);
  const GroupedProduct product{nullptr, nullptr, shape.matrices, shape.M, shape.N, shape.K};
  launch_persistent<Shape, Epilogue>(stream, batched_gemm_kernel<Shape, Operands, Epilogue>, "a product of a batch",
                                     a_map, b_map, shape, product, epilogue);
}

// The tile of symmetric products: it is small, so that few elements above the diagonal are computed.
using SquareTile = TileShape<128, 128, Consumers::ping_pong, Multicast::none>;

}  // namespace witan::kernels::cuda
