// The largest score of each head: the first product of attention's forward, by its tiles, and nothing after it. Blocks
// write the largest scores of their rows, by head, to scratch memory, and a second kernel takes the largest of those.
#include "witan/kernels/attention/cuda/attention_tensor_forward.cuh"
#include "witan/kernels/attention/qk_clip.h"
#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/common/cuda/update.cuh"
#include "witan/kernels/common/step_report.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;

// row_max holds the maximum of each row of a block's tile, in shared memory; found[task, head of the group] becomes the
// largest of a head's rows.
template <class A>
__device__ __forceinline__ void leave_largest(A* found, const A* row_max, int first_row, int rows, int rep) {
  __syncthreads();
  for (int head = threadIdx.x; head < rep; head += kThreads) {
    A most = -INFINITY;
    for (int r = (head - first_row % rep + rep) % rep; r < rows; r += rep) most = max(most, row_max[r]);
    found[head] = most;
  }
}

// Whether a row is padding, which has no scores.
__device__ __forceinline__ bool is_padding(const RowSight& row) {
  return row.id < 0;
}

// D: the head size rounded up. 16-bit numbers use tensor cores, with 16 rows per warp.
template <int D, class T>
__global__ void __launch_bounds__(kThreads)
    largest_by_tensor_cores(const AttentionCall<T> call, float* found, int64_t groups, int tiles) {
  using namespace tensor;
  using F = ForwardTile<D>;
  static_assert(F::kThreads == kThreads);
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ float row_largest[F::kRows];
  auto *const q = reinterpret_cast<T*>(memory), *const buffers = q + F::kQueryElements;

  const BlockTask task = block_task(call, groups, tiles, true);
  const int32_t* key_ids = call.key_ids_of(task.group);
  const WarpRows rows(call.heads, call.ids_of(task.group), task.tile, F::kRows);
  const Tiles tiles_of_keys{key_ids, false, F::kKeys, rows.keys};
  const auto load = [&](int key, int buffer) {
    load_keys<D, F::kKeys, F::kThreads>(buffers + buffer * F::kKeyElements, call, call.k, call.heads.hd, task.group,
                                        key, rows.keys);
  };
  load_queries<D, F::kRows, F::kThreads>(q, call, call.q, call.heads.hd, task.group, rows.first_row);
  int key = tiles_of_keys.next(tiles_of_keys.begin_of(rows.first_key), rows.ids);
  Pipeline pipeline(load, key, rows.keys);

  const T* my_q = q + threadIdx.x / 32 * 16 * kStride<D>;
  float top[2] = {-INFINITY, -INFINITY};
  while (key < rows.keys) {
    const int following = tiles_of_keys.next(tiles_of_keys.after(key), rows.ids);
    const T* k = buffers + pipeline.next(following) * F::kKeyElements;
    if (rows.busy()) {
      Sums<F::kKeys> s;
      clear<F::kKeys>(s);
      add_scores<F::kKeys, D>(s, my_q, k);
      scale_scores<F::kKeys>(s, call.scale);
      hide<F::kKeys>(s, rows, key_ids, key, rows.keys);
#pragma unroll
      for (const auto& score : s)
#pragma unroll
        for (int e = 0; e < 4; ++e) top[e / 2] = fmaxf(top[e / 2], score[e]);
    }
    key = following;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float most = row_max(top[half]);
    if (threadIdx.x % 4 == 0)
      row_largest[rows.row[half] - rows.first_row] = is_padding(rows.sight[half]) ? -INFINITY : most;
  }
  leave_largest(found + (task.group * tiles + task.tile) * call.heads.rep, row_largest, rows.first_row,
                rows.last_row + 1 - rows.first_row, call.heads.rep);
}

constexpr int kPlainRows = 32;

// float32 and float64 use ordinary cores: a warp takes every fourth row of a tile, and a lane every 32nd key.
template <class T>
__global__ void __launch_bounds__(kThreads)
    largest_plain(const AttentionCall<T> call, Acc<T>* found, int64_t groups, int tiles) {
  using A = Acc<T>;
  __shared__ A row_largest[kPlainRows];
  const BlockTask task = block_task(call, groups, tiles, true);
  const Heads& heads = call.heads;
  const int first_row = task.tile * kPlainRows, count = min(kPlainRows, heads.rows - first_row);
  const int32_t *ids = call.ids_of(task.group), *key_ids = call.key_ids_of(task.group);
  for (int r = static_cast<int>(threadIdx.x) / 32; r < count; r += kWarps) {
    const int row = first_row + r;
    const RowSight sight = row_sight(heads, ids, row);
    const T* q = call.q + heads.query(task.group, row, heads.hd);
    A most = -INFINITY;
    for (int j = is_padding(sight) ? sight.keys : sight.from + static_cast<int>(threadIdx.x) % 32; j < sight.keys;
         j += 32) {
      if (!sight.sees(j, key_ids)) continue;
      const T* k = call.k + heads.key(task.group, j, heads.hd);
      A sum = 0;
      for (int d = 0; d < heads.hd; ++d) sum += convert<A>(q[d]) * convert<A>(k[d]);
      most = max(most, call.scale * sum);
    }
    most = warp_max(most);
    if (threadIdx.x % 32 == 0) row_largest[r] = most;
  }
  leave_largest(found + (task.group * tiles + task.tile) * heads.rep, row_largest, first_row, count, heads.rep);
}

// One warp per head of largest [G rep]; found [B, G, tiles, rep].
template <class A>
__global__ void __launch_bounds__(32) raise_kernel(A* largest, const A* found, int B, int G, int tiles, int rep) {
  const int head = blockIdx.x, g = head / rep;
  A most = -INFINITY;
  for (int64_t i = threadIdx.x; i < int64_t{B} * tiles; i += 32)
    most = max(most, found[((i / tiles * G + g) * tiles + i % tiles) * rep + head % rep]);
  most = warp_max(most);
  if (threadIdx.x == 0) largest[head] = max(largest[head], most);
}

template <int D, class T>
void launch_tensor(Stream& stream, const AttentionCall<T>& call, float* found, int tiles) {
  using F = tensor::ForwardTile<D>;
  constexpr int kBytes = (F::kQueryElements + 2 * F::kKeyElements) * static_cast<int>(sizeof(T));
  cudaFuncSetAttribute(largest_by_tensor_cores<D, T>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  const int64_t groups = call.heads.groups();
  largest_by_tensor_cores<D, T>
      <<<static_cast<unsigned>(groups * tiles), kThreads, kBytes, native(stream)>>>(call, found, groups, tiles);
}

template <class T>
void launch_largest(Stream& stream, const AttentionCall<T>& call, Acc<T>* found, int tiles) {
  if constexpr (sizeof(T) == 2) {
    if (call.heads.hd <= 64) return launch_tensor<64>(stream, call, found, tiles);
    if (call.heads.hd <= 128) return launch_tensor<128>(stream, call, found, tiles);
    launch_tensor<256>(stream, call, found, tiles);
  } else {
    const int64_t groups = call.heads.groups();
    largest_plain<<<static_cast<unsigned>(groups * tiles), kThreads, 0, native(stream)>>>(call, found, groups, tiles);
  }
}

// Multiplies the elements from blockIdx.x * kClipped on by the factor.
constexpr int kClipped = 1024;
template <class T>
__global__ void __launch_bounds__(256) clip_kernel(Weights<T> weights, int64_t elements, const Acc<T>* largest, int rep,
                                                   const double* step, ClipArgs args) {
  using A = Acc<T>;
  if (step[step_value::skip] != 0) return;
  const int64_t begin = int64_t{blockIdx.x} * kClipped, end = min(begin + kClipped, elements);
  int64_t group = -1;
  bool leads = false;
  A factor = 1;
  for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
    const int64_t of = (args.first + i) / args.per_group;
    const bool first = (args.first + i) % args.per_group < args.leading;
    if (of != group || first != leads) {
      group = of, leads = first;
      A most = -INFINITY;
      for (int h = 0; h < rep; ++h) most = max(most, largest[group * rep + h]);
      const auto wide = static_cast<double>(most);
      const double exponent = leads ? args.exponent : args.exponent_of_rest;
      factor = wide > args.threshold ? static_cast<A>(pow(args.threshold / wide, exponent)) : A(1);
    }
    if (factor == A(1)) continue;
    A p[1];
    weights.load(p, i);
    p[0] *= factor;
    weights.store(p, i);
  }
}

}  // namespace

void attention_max_logits(Stream& stream, const Tensor& largest, const AttentionInputs& in) {
  dispatch_device(in.q.dtype(), [&]<class T>() {
    using A = Acc<T>;
    const AttentionCall<T> call(in);
    const Heads& heads = call.heads;
    if (heads.empty()) return;
    const int tiles = static_cast<int>(tiles_of(heads.rows, sizeof(T) == 2 ? 64 : kPlainRows));
    const int64_t bytes = heads.groups() * tiles * heads.rep * static_cast<int64_t>(sizeof(A));
    require<DeviceError>(bytes <= Stream::kScratchBytes, "qk_clip: ", heads.B, " sequences of ", heads.S,
                         " tokens with ", heads.H, " heads are too many for one micro-batch; lower micro_batch_size");
    A* found = reinterpret_cast<A*>(stream.scratch(bytes));
    launch_largest(stream, call, found, tiles);
    raise_kernel<<<static_cast<unsigned>(heads.H), 32, 0, native(stream)>>>(ptr<A>(largest), found, heads.B, heads.G,
                                                                            tiles, heads.rep);
  });
}

void clip_projection(Stream& stream, const ClippedTensors& to, const Tensor& largest, int64_t groups,
                     const Tensor& step, const ClipArgs& args) {
  const int64_t elements = to.value.elements(), blocks = (elements + kClipped - 1) / kClipped;
  if (blocks == 0) return;
  dispatch_device(to.value.dtype(), [&]<class T>() {
    const Weights<T> weights{ptr<T>(to.value), ptr<Remainder<T>>(to.remainder)};
    clip_kernel<<<static_cast<unsigned>(blocks), 256, 0, native(stream)>>>(
        weights, elements, ptr<Acc<T>>(largest), static_cast<int>(largest.elements() / groups), ptr<double>(step),
        args);
  });
}

}  // namespace witan::kernels::cuda
