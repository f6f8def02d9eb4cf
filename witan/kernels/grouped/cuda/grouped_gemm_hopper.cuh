// The persistent kernel of the grouped products on Hopper: c [M, N] = a [M, K] b [N, K]^T for each expert, in bfloat16
// or float16. A producer thread copies tiles of both operands into a ring of stages in shared memory; two warpgroups
// multiply them and pass the sums, still in registers, to an epilogue. The producer runs ahead into the next tile, and
// the two warpgroups may be up to a ring apart, so that one multiplies while the other is in its epilogue. The rows of
// one operand may be gathered by the producer's whole warpgroup (grouped_gather.cuh) instead of coming from a pool.
#pragma once

#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/common/cuda/hopper.cuh"
#include "witan/kernels/common/cuda/tensor_map.h"
#include "witan/kernels/common/cuda/wgmma.cuh"
#include "witan/kernels/grouped/cuda/grouped_gather.cuh"
#include "witan/kernels/grouped/cuda/grouped_tiles.cuh"

namespace witan::kernels::cuda {

inline constexpr int kWarpgroup = 128, kConsumers = 2, kGroupedThreads = kWarpgroup * (1 + kConsumers);
inline constexpr int kClearBarrier = 1, kTurnBarrier = 3;  // named barriers, one of each per consumer
inline constexpr int kMostGroups = 1024;                   // as many as their table in shared memory holds
inline constexpr int kSharedBytes = 227 << 10;             // the most shared memory that a block can have

// The operand that the two blocks of a cluster share: each block loads half of it for both.
enum class Multicast : uint8_t { none, a, b };
// How the two consumer warpgroups share the work, in CUTLASS's terms: each computes half of every tile (cooperative),
// or every other tile, so that one multiplies while the other is in its epilogue (ping-pong).
enum class Consumers : uint8_t { cooperative, ping_pong };

template <int kTileMOf, int kTileNOf, Consumers kConsumersOf, Multicast kMulticastOf>
struct TileShape {
  static constexpr int kTileM = kTileMOf, kTileN = kTileNOf;
  static constexpr Multicast kMulticast = kMulticastOf;
  static constexpr bool kPingPong = kConsumersOf == Consumers::ping_pong;
  static constexpr int kCluster = kMulticast == Multicast::none ? 1 : 2;
  static constexpr int kClusterM = kTileM * (kMulticast == Multicast::b ? 2 : 1);
  static constexpr int kClusterN = kTileN * (kMulticast == Multicast::a ? 2 : 1);
  static constexpr int kSubtiles = kTileM / kSubtile;  // subtiles of 64 rows, which alternate between warpgroups
  static constexpr int kPartsApart = kPingPong ? 1 : kConsumers;  // subtiles from a warpgroup's part to its next
  static constexpr int kParts = kSubtiles / kPartsApart;          // parts of 64 rows that a warpgroup computes
  static constexpr int kStageA = kTileM * kSubtile * 2, kStageB = kTileN * kSubtile * 2, kStage = kStageA + kStageB;
  static_assert(kTileM % (kSubtile * kPartsApart) == 0 && kParts <= 2 && kTileN % kSubtile == 0);
  static constexpr int kLoadB = kTileN / (kMulticast == Multicast::b ? 2 : 1);  // columns that one block copies
};

// The block's shared memory: as many stages as fit beside the table of groups and the epilogue's staging of each warp.
template <class Shape, int kStaging>
struct Memory {
  static constexpr int kAlign = 1024, kTable = (kMostGroups + 1) * static_cast<int>(sizeof(Group));
  static constexpr int kStagingAll = kConsumers * kWarpgroup / 32 * kStaging;
  static constexpr int kPerStage = Shape::kStage + 2 * static_cast<int>(sizeof(uint64_t));
  static constexpr int kStages = (kSharedBytes - kAlign - kTable - kStagingAll) / kPerStage;
  static constexpr int kBytes = kAlign + kStages * kPerStage + kStagingAll + kTable;
  static_assert(kStages >= 3 && kStaging % 16 == 0);
};

// The columns of a tile: adjacent, or paired, that is, half of them from each half of all columns, as in [gate | up].
enum class Columns : uint8_t { adjacent, paired };

template <Grouped kGroupedOf, Major kMajorAOf, Major kMajorBOf, Columns kPairingOf = Columns::adjacent,
          Element kElementOf = Element::bfloat16, Gathered kGatheredOf = Gathered::none>
struct OperandLayout {
  static constexpr Grouped kGrouped = kGroupedOf;
  static constexpr Major kMajorA = kMajorAOf, kMajorB = kMajorBOf;
  static constexpr Element kElement = kElementOf;
  static constexpr bool kPaired = kPairingOf == Columns::paired;
  static constexpr Gathered kGathered = kGatheredOf;
  static constexpr bool kGathersA = kGathered == Gathered::a, kGathersB = kGathered == Gathered::b;
  // The producing threads: one, which announces the copy engine's bytes to a stage's barrier, or, if rows are gathered,
  // a whole warpgroup, each thread of which also arrives there.
  static constexpr uint32_t kProducers = kGathered == Gathered::none ? 1 : kWarpgroup;
  static constexpr uint32_t kArrivals = kGathered == Gathered::none ? 1 : 1 + kWarpgroup;
  // Registers per producing and consuming thread: the three warpgroups share those of the launch, 168 per thread. With
  // fewer, gathering threads spilled, and so did the epilogue of paired columns with fewer than 224.
  static constexpr int kProducerRegisters = kGathered == Gathered::none ? 40 : kPaired ? 56 : 72;
  static constexpr int kConsumerRegisters = (3 * 168 - kProducerRegisters) / 2;
  static_assert(!kPaired || kMajorB == Major::k);
  static_assert(!kGathersB || (kGrouped == Grouped::sum && kMajorB == Major::mn));
  static_assert(!kGathersA || (kGrouped == Grouped::sum) == (kMajorA == Major::mn));
  // Columns of one box of b.
  template <class Shape>
  static constexpr int kBoxB = kMajorB == Major::mn ? kSubtile
                               : kPaired            ? Shape::kTileN / 2
                                                    : Shape::kLoadB;
};

// The part of a result that each warp of a warpgroup passes to the epilogue: 64 rows of one expert's result (in the
// pool, or in the expert's own matrix), of which `rows` and `columns` exist. With paired columns, `column` is the first
// column of the first half, and `columns` the number that exist in each half.
struct Part {
  int expert, row, rows, column, columns;
};

// An epilogue that reads memory starts its first reads before the sums of a warpgroup's only part are computed.
template <class Epilogue>
concept ReadsMemory = requires(const Epilogue& epilogue, const Part& part, uint8_t* staging) {
  epilogue.fetch(part, staging);
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A position in the ring: the stage, and the parity of its current round.
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ void skip(int blocks) {
    const int to = stage + blocks;
    parity ^= static_cast<uint32_t>(to / kStages) & 1;
    stage = to % kStages;
  }
};

template <class Shape, int kStaging>
struct SharedRing {
  static constexpr int kStages = Memory<Shape, kStaging>::kStages;
  uint8_t *stages, *staging;
  uint64_t *full, *empty;  // [kStages]
  Group* groups;

  __device__ explicit SharedRing(uint8_t* memory)
      : stages(memory + (1024 - shared_address(memory) % 1024) % 1024),
        staging(stages + kStages * Shape::kStage),
        full(reinterpret_cast<uint64_t*>(staging + kConsumers * kWarpgroup / 32 * kStaging)),
        empty(full + kStages),
        groups(reinterpret_cast<Group*>(empty + kStages)) {}
  __device__ uint8_t* staging_of(int warp) const { return staging + warp * kStaging; }
  __device__ uint8_t* a(int stage) const { return stages + stage * Shape::kStage; }
  __device__ uint8_t* b(int stage) const { return a(stage) + Shape::kStageA; }

  __device__ void init(uint32_t producers = 1) const {
    constexpr uint32_t kWarps = (Shape::kPingPong ? 1 : kConsumers) * kWarpgroup / 32;
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(full + stage, producers);
      barrier_init(empty + stage, kWarps * Shape::kCluster);
    }
    barrier_init_done();
  }
};

// Loads a box of 64 of K by rows of M (or N), for this block alone or for both blocks of the cluster.
template <Major kMajor, bool kShared>
__device__ __forceinline__ void load_box_of(uint8_t* to, const CUtensorMap& map, uint64_t* barrier, int m, int k,
                                            int slice) {
  const int inner = kMajor == Major::k ? k : m, outer = kMajor == Major::k ? m : k;
  if constexpr (kShared)
    load_box(to, map, barrier, inner, outer, slice, 0b11);
  else
    load_box(to, map, barrier, inner, outer, slice);
}

// Loads the subtiles of a that contain rows below M; if the blocks of a cluster share them, every other subtile.
template <class Shape, class Operands>
__device__ __forceinline__ void load_a(uint8_t* to, const CUtensorMap& map, uint64_t* barrier, int m, int k, int M,
                                       int rank) {
  constexpr bool kShared = Shape::kMulticast == Multicast::a;
#pragma unroll
  for (int i = 0; i < Shape::kSubtiles; i += kShared ? 2 : 1) {
    const int subtile = i + (kShared ? rank : 0);
    if (subtile * kSubtile < M)
      load_box_of<Operands::kMajorA, kShared>(to + subtile * kSubtileBytes, map, barrier, m + subtile * kSubtile, k, 0);
  }
}

// Loads all columns of b or, if the blocks of a cluster share them, this block's half. `half`: the gates in [gate |
// up].
template <class Shape, class Operands>
__device__ __forceinline__ void load_b(uint8_t* to, const CUtensorMap& map, uint64_t* barrier, int column, int half,
                                       int k, int slice, int rank) {
  constexpr bool kShared = Shape::kMulticast == Multicast::b;
  constexpr int kBox = Operands::template kBoxB<Shape>;
  static_assert(Shape::kLoadB % kBox == 0);
  const int first = kShared ? rank * Shape::kLoadB : 0;
#pragma unroll
  for (int i = 0; i < Shape::kLoadB; i += kBox) {
    const int at = first + i, paired = column / 2 + (at == 0 ? 0 : half);
    load_box_of<Operands::kMajorB, kShared>(to + at * kSubtile * 2, map, barrier,
                                            Operands::kPaired ? paired : column + at, k, slice);
  }
}

// The number of blocks of K. An empty sum has one block without valid rows if zeros must be written.
template <Grouped kGrouped, bool kAccumulates>
__device__ __forceinline__ int k_blocks(const GroupedProduct& product, const Tile& tile) {
  if constexpr (kGrouped == Grouped::sum)
    return max(divide_up(tile.rows, kSubtile), kAccumulates ? 0 : 1);
  else
    return divide_up(product.K, kSubtile);
}

// This block's tile of its cluster tile.
template <class Shape, class Operands, class AllTiles>
__device__ __forceinline__ Tile tile_of(const AllTiles& tiles, int cluster_tile, int rank) {
  Tile tile = tiles.at(cluster_tile);
  if (Shape::kMulticast == Multicast::a) tile.n += rank * Shape::kTileN;
  if (Shape::kMulticast == Multicast::b) {
    tile.m += rank * Shape::kTileM;
    if (Operands::kGrouped == Grouped::m) {
      tile.row += rank * Shape::kTileM;
      tile.rows -= rank * Shape::kTileM;
    }
  }
  return tile;
}

// The rows of M from the tile's first on. Subtiles beyond them are neither loaded nor multiplied.
template <class Operands>
__device__ __forceinline__ int m_left(const GroupedProduct& product, const Tile& tile) {
  return Operands::kGrouped == Grouped::sum ? product.M - tile.m : tile.rows;
}

// How the operand with gathered rows is gathered.
template <class Shape, class Operands>
using GatherFor = std::conditional_t<Operands::kGathered == Gathered::none, GatherNothing,
                                     std::conditional_t<Operands::kGrouped == Grouped::m, GatherM<Shape::kTileM>,
                                                        GatherK<Operands::kGathersA ? Shape::kTileM : Shape::kTileN>>>;

// Nothing is loaded beside a stage's operands.
struct NothingBeside {
  __device__ __forceinline__ uint32_t bytes(const Tile&, int) const { return 0; }
  __device__ __forceinline__ void load(uint8_t*, uint64_t*, const Tile&, int, int) const {}
};

// Fills stages with the tiles of every cluster tile as they become empty. Runs on one thread, or on the whole warpgroup
// if rows are gathered. The first thread has the copy engine load the operands that are not gathered and, into each
// stage, the data of `beside`.
template <class Shape, class Operands, bool kAccumulates, int kStaging, class AllTiles, class Beside = NothingBeside>
__device__ void produce(const SharedRing<Shape, kStaging>& shared, const AllTiles& tiles, const GroupedProduct& product,
                        const CUtensorMap& a_map, const CUtensorMap& b_map, const GatheredRows& gathered, int rank,
                        const Beside& beside = {}) {
  constexpr bool kSum = Operands::kGrouped == Grouped::sum, kGathers = Operands::kGathered != Gathered::none;
  constexpr bool kLoadsA = !Operands::kGathersA, kLoadsB = !Operands::kGathersB;
  static_assert(!(Operands::kGathersA && Shape::kMulticast == Multicast::a) &&
                !(Operands::kGathersB && Shape::kMulticast == Multicast::b));
  const bool loads = !kGathers || threadIdx.x == 0;
  if (loads && kLoadsA) prefetch_map(a_map);
  if (loads && kLoadsB) prefetch_map(b_map);
  GatherFor<Shape, Operands> gather;
  Ring<SharedRing<Shape, kStaging>::kStages> ring;
  const int apart = static_cast<int>(gridDim.x) / Shape::kCluster;
  for (int cluster_tile = static_cast<int>(blockIdx.x) / Shape::kCluster; cluster_tile < tiles.cluster_tiles();
       cluster_tile += apart) {
    const Tile tile = tile_of<Shape, Operands>(tiles, cluster_tile, rank);
    const int blocks = k_blocks<Operands::kGrouped, kAccumulates>(product, tile);
    const int M = m_left<Operands>(product, tile);
    const int subtiles = min(Shape::kSubtiles, max(0, divide_up(M, kSubtile)));
    gather.begin(gathered, tile.row, tile.rows, Operands::kGathersA ? tile.m : tile.n);
    for (int block = 0; block < blocks; ++block, ring.advance()) {
      uint64_t* full = shared.full + ring.stage;
      barrier_wait(shared.empty + ring.stage, ring.parity ^ 1);
      if (loads) {
        barrier_arrive_and_expect(
            full, static_cast<uint32_t>((kLoadsA ? subtiles * kSubtileBytes : 0) + (kLoadsB ? Shape::kStageB : 0)) +
                      beside.bytes(tile, M));
        beside.load(shared.b(ring.stage) + Shape::kStageB, full, tile, M, block);
        const int k = block * kSubtile + (kSum ? tile.row : 0);
        if constexpr (kLoadsA)
          load_a<Shape, Operands>(shared.a(ring.stage), a_map, full, kSum ? tile.m : tile.row, k, M, rank);
        if constexpr (kLoadsB)
          load_b<Shape, Operands>(shared.b(ring.stage), b_map, full, tile.n, product.N / 2, k, kSum ? 0 : tile.expert,
                                  rank);
      }
      if constexpr (kGathers) {
        __syncwarp();
        gather.copy(Operands::kGathersA ? shared.a(ring.stage) : shared.b(ring.stage), gathered, block);
        barrier_arrive_when_copied(full);
      }
    }
  }
  if constexpr (kGathers) wait_copied();
}

// Zeroes the rows from `valid` on, which belong to other groups or to none; called by the consuming threads. Used only
// if K runs over rows, which makes them the last bytes of each subtile.
template <class Shape>
__device__ __forceinline__ void clear_tail(uint8_t* stage, int valid, int consumer) {
  constexpr int kThreads = Shape::kPingPong ? kWarpgroup : kWarpgroup * kConsumers;
  const int thread = static_cast<int>(threadIdx.x) - kWarpgroup * (Shape::kPingPong ? 1 + consumer : 1);
  const int each = (kSubtile - valid) * 8;  // 16-byte pieces per subtile
  for (int i = thread; i < each * (Shape::kStage / kSubtileBytes); i += kThreads) {
    const int subtile = i / each, piece = i - subtile * each;
    *reinterpret_cast<uint4*>(stage + subtile * kSubtileBytes + valid * 128 + piece * 16) = make_uint4(0, 0, 0, 0);
  }
  fence_shared_for_async();
  sync_threads(kClearBarrier + (Shape::kPingPong ? consumer : 0), kThreads);
}

// A warp releases a stage to be loaded again: to its own block's producer, or to those of both blocks of a cluster.
template <class Shape>
__device__ __forceinline__ void release(uint64_t* empty) {
  const auto lane = threadIdx.x % 32;
  if constexpr (Shape::kCluster == 1) {
    if (lane == 0) barrier_arrive(empty);
  } else {
    if (lane < Shape::kCluster) barrier_arrive_at(empty, lane);
  }
}

// sums = a b^T over all blocks of K, for the first kParts (possibly none) of the warpgroup's parts. Each stage is
// released one block late, when its multiplies have ended. Calls `issued` once all multiplies are issued.
template <int kParts, class Shape, class Operands, int kStaging, class Issued>
__device__ __forceinline__ void multiply(float (&sums)[Shape::kParts][Shape::kTileN / 2],
                                         const SharedRing<Shape, kStaging>& shared,
                                         Ring<SharedRing<Shape, kStaging>::kStages>& ring, int blocks, int rows,
                                         int consumer, const Issued& issued) {
  constexpr Major kA = Operands::kMajorA, kB = Operands::kMajorB;
  int before = 0;
  for (int block = 0; block < blocks; ++block) {
    barrier_wait(shared.full + ring.stage, ring.parity);
    if constexpr (Operands::kGathered != Gathered::none) fence_shared_for_async();
    if (Operands::kGrouped == Grouped::sum && rows - block * kSubtile < kSubtile)
      clear_tail<Shape>(shared.a(ring.stage), rows - block * kSubtile, consumer);
    if constexpr (kParts > 0) {
      const uint64_t a = wgmma_operand<kA>(shared.a(ring.stage) + (Shape::kPingPong ? 0 : consumer * kSubtileBytes));
      const uint64_t b = wgmma_operand<kB>(shared.b(ring.stage));
      wgmma_begin();
#pragma unroll
      for (int k = 0; k < kSubtile / kWgmmaK; ++k)
#pragma unroll
        for (int part = 0; part < kParts; ++part)
          wgmma<Shape::kTileN, kA, kB, Operands::kElement>(
              sums[part], a + part * (Shape::kPartsApart * kSubtileBytes >> 4) + k * kWgmmaAdvance<kA>,
              b + k * kWgmmaAdvance<kB>, block | k);
      wgmma_commit();
      wgmma_wait<1>();
    }
    if (block > 0) release<Shape>(shared.empty + before);
    before = ring.stage;
    ring.advance();
  }
  issued();
  if constexpr (kParts > 0) {
    wgmma_wait<0>();
#pragma unroll
    for (int part = 0; part < kParts; ++part) pin(sums[part]);
  }
  release<Shape>(shared.empty + before);
}

// One warpgroup computes every tile, or every other one. It looks up the next tile while multiplies run.
template <class Shape, class Operands, int kStaging, class AllTiles, class Epilogue>
__device__ void consume(const SharedRing<Shape, kStaging>& shared, const AllTiles& tiles, const GroupedProduct& product,
                        const Epilogue& epilogue, int rank, int consumer) {
  constexpr bool kSum = Operands::kGrouped == Grouped::sum;
  constexpr int kApart = Shape::kPartsApart * kSubtile;
  uint8_t* const staging = shared.staging_of(static_cast<int>(threadIdx.x) / 32 - kWarpgroup / 32);
  Ring<SharedRing<Shape, kStaging>::kStages> ring;
  const int first = static_cast<int>(blockIdx.x) / Shape::kCluster;
  const int apart = static_cast<int>(gridDim.x) / Shape::kCluster;
  const auto tile_at = [&](int cluster_tile) {
    return cluster_tile < tiles.cluster_tiles() ? tile_of<Shape, Operands>(tiles, cluster_tile, rank) : Tile{};
  };
  Tile next = tile_at(first);
  int turn = 0;
  for (int cluster_tile = first; cluster_tile < tiles.cluster_tiles(); cluster_tile += apart, turn ^= 1) {
    const Tile tile = next;
    const int blocks = k_blocks<Operands::kGrouped, Epilogue::kAccumulates>(product, tile);
    if (Shape::kPingPong && turn != consumer) {
      ring.skip(blocks);
      next = tile_at(cluster_tile + apart);
      continue;
    }
    // In ping-pong, a warpgroup waits until the other has waited for every stage before its own, because a parity
    // distinguishes only two rounds.
    const auto pass = [&] {
      if (Shape::kPingPong && cluster_tile + apart < tiles.cluster_tiles())
        arrive_threads(kTurnBarrier + (consumer ^ 1), kWarpgroup * kConsumers);
      next = tile_at(cluster_tile + apart);
    };
    if (Shape::kPingPong && cluster_tile != first) sync_threads(kTurnBarrier + consumer, kWarpgroup * kConsumers);
    if (blocks == 0) {
      pass();
      continue;
    }
    const int down = Shape::kPingPong ? 0 : consumer * kSubtile, M = m_left<Operands>(product, tile) - down;
    constexpr int kHalves = Operands::kPaired ? 2 : 1;
    const auto part_at = [&](int part) -> Part {
      const int row = (kSum ? tile.m : tile.row) + down + part * kApart;
      return {tile.expert, row, M - part * kApart, tile.n / kHalves, (product.N - tile.n) / kHalves};
    };
    if constexpr (ReadsMemory<Epilogue>) {
      static_assert(Shape::kParts == 1);
      epilogue.fetch(part_at(0), staging);
    }
    float sums[Shape::kParts][Shape::kTileN / 2];
    // The branches compare rows rather than a number of parts clamped to kParts: nvcc 13.0 was seen to invert that
    // comparison.
    if (M > (Shape::kParts - 1) * kApart)
      multiply<Shape::kParts, Shape, Operands>(sums, shared, ring, blocks, tile.rows, consumer, pass);
    else if (Shape::kParts > 1 && M > 0)
      multiply<1, Shape, Operands>(sums, shared, ring, blocks, tile.rows, consumer, pass);
    else
      multiply<0, Shape, Operands>(sums, shared, ring, blocks, tile.rows, consumer, pass);
#pragma unroll
    for (int part = 0; part < Shape::kParts; ++part) {
      const Part own = part_at(part);
      if (own.rows <= 0) break;
      epilogue.template operator()<Shape::kTileN>(sums[part], own, staging);
    }
  }
  epilogue.finish();
}

// Runs the whole block: one warpgroup produces, two consume. The ring and the tiles are visible to all threads.
template <class Shape, class Operands, int kStaging, class AllTiles, class Epilogue>
__device__ __forceinline__ void run_block(const SharedRing<Shape, kStaging>& shared, const AllTiles& tiles,
                                          const GroupedProduct& product, const CUtensorMap& a_map,
                                          const CUtensorMap& b_map, const Epilogue& epilogue,
                                          const GatheredRows& gathered = {}) {
  const int rank = Shape::kCluster > 1 ? static_cast<int>(rank_in_cluster()) : 0;
  if (Shape::kCluster > 1) cluster_sync();

  const int warpgroup = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (warpgroup == 0) {
    give_registers<Operands::kProducerRegisters>();
    if (threadIdx.x < Operands::kProducers)
      produce<Shape, Operands, Epilogue::kAccumulates>(shared, tiles, product, a_map, b_map, gathered, rank);
  } else {
    take_registers<Operands::kConsumerRegisters>();
    consume<Shape, Operands>(shared, tiles, product, epilogue, rank, warpgroup - 1);
  }
  // The other block may still load into this one's memory, or arrive at its barriers.
  if (Shape::kCluster > 1) cluster_sync();
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

// a [rows of the pool, K] or, if K is grouped, [rows of the pool, M]; b is the expert's matrix, or in the pool.
template <class Shape, class Operands, class Epilogue>
__global__ void __launch_bounds__(kGroupedThreads, 1)
    grouped_gemm_kernel(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
                        const __grid_constant__ GroupedProduct product, const __grid_constant__ GatheredRows gathered,
                        const __grid_constant__ Epilogue epilogue) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint8_t memory[];
  const SharedRing<Shape, Epilogue::template kStaging<Shape::kTileN>> shared(memory);
  if (threadIdx.x == 0) shared.init(Operands::kArrivals);
  const Tiles<Operands::kGrouped, Shape::kClusterM, Shape::kClusterN> tiles(product, shared.groups);
  run_block<Shape, Operands>(shared, tiles, product, a_map, b_map, epilogue, gathered);
#endif
}

// Launches one block per multiprocessor, in clusters of the shape's size.
template <class Shape, class Epilogue, class Kernel, class... Arguments>
void launch_persistent(Stream& stream, const Kernel& kernel, const char* what, const Arguments&... arguments) {
  constexpr int kBytes = Memory<Shape, Epilogue::template kStaging<Shape::kTileN>>::kBytes;
  witan::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
                     "asking for shared memory");
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {Shape::kCluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(multiprocessors(stream) / Shape::kCluster * Shape::kCluster);
  config.blockDim = kGroupedThreads;
  config.dynamicSmemBytes = kBytes;
  config.stream = native(stream);
  config.attrs = &cluster;
  config.numAttrs = 1;
  witan::cuda::check(cudaLaunchKernelEx(&config, kernel, arguments...), what);
}

// `rows`: the index of the operand that Operands says is gathered.
template <class Shape, class Operands, class Epilogue>
void launch_grouped_gemm(Stream& stream, const Tensor& a, const Tensor& b, GroupedProduct product,
                         const Epilogue& epilogue, const RowIndex& rows = {}) {
  constexpr int kWalkedColumns = 2048;  // by as many rows: the part of the result in flight
  product.walk = std::max(1, kWalkedColumns / Shape::kClusterN);
  CUtensorMap a_map{}, b_map{};
  GatheredRows gathered{};
  if (!Operands::kGathersA) a_map = tensor_map(a, kSubtile);
  if (!Operands::kGathersB) b_map = tensor_map(b, Operands::template kBoxB<Shape>);
  if (Operands::kGathered != Gathered::none) gathered = gathered_rows(Operands::kGathersA ? a : b, rows);
  launch_persistent<Shape, Epilogue>(stream, grouped_gemm_kernel<Shape, Operands, Epilogue>, "a grouped product", a_map,
                                     b_map, product, gathered, epilogue);
}

}  // namespace witan::kernels::cuda
