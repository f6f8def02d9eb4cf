// Gradients of the lightning indexer's scores on tensor cores, in training. The products q . k are computed again, and
// the gradients of scores with a positive product are the left operands of the next product, in 16 bits.
#include "witan/kernels/attention/cuda/index_call.cuh"
#include "witan/kernels/common/cuda/tensor_tiles.cuh"

namespace witan::kernels::cuda {
namespace {

constexpr int kGroupHeads = 64;  // at a time

template <class T>
struct IndexOutputs {
  T *dq, *dw;
  float* dk;
  const float* dscores;
};

// ---- dq and dw: a block has 64 heads of two tokens, a warp 16 of them, and takes keys 64 at a time ------------------

constexpr int kQueryThreads = 256, kQueryTokens = 2, kKeyRows = 64;

template <class T, int kColumns>
struct IndexQueryShared {
  static constexpr int kTile = kKeyRows * kColumns;
  static constexpr int kBytes = 2 * kTile * 2 + 2 * kQueryTokens * kKeyRows * 4;
  T* tiles;
  float* gradients;
  __device__ explicit IndexQueryShared(unsigned char* memory)
      : tiles(reinterpret_cast<T*>(memory)), gradients(reinterpret_cast<float*>(tiles + 2 * kTile)) {}
  __device__ SharedTile<kColumns, T> keys(int turn) const { return {tiles + turn * kTile}; }
  __device__ float* gradients_of(int turn, int token) const {
    return gradients + (turn * kQueryTokens + token) * kKeyRows;
  }
};

template <class T, int kColumns>
class IndexQueryGradients {
 public:
  __device__ __forceinline__ IndexQueryGradients(const IndexOutputs<T>& to, const IndexCall<T>& call,
                                                 unsigned char* memory)
      : to_(to),
        call_(call),
        at_(memory),
        first_(static_cast<int>(blockIdx.x) * kQueryTokens),
        mine_(own_warp() / 4),
        head_(static_cast<int>(blockIdx.y) * kGroupHeads + own_warp() % 4 * 16) {}

  __device__ __forceinline__ void run() {
    const int begin = document_begin(first_);
    const bool two = first_ + 1 < call_.tokens, together = two &&
                                                           call_.view.row(first_ + 1) == call_.view.row(first_) &&
                                                           document_begin(first_ + 1) == begin;
    load_queries();
    take_keys(first_, together ? 2 : 1, begin);
    if (two && !together) take_keys(first_ + 1, 1, document_begin(first_ + 1));
    write();
  }

 private:
  __device__ __forceinline__ bool has_rows() const { return first_ + mine_ < call_.tokens && head_ < call_.heads; }
  // The queries of the warp's heads, as left operands.
  __device__ __forceinline__ void load_queries() {
    const int column = warp_lane() % 4 * 2;
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) {
      const int h = head_ + warp_lane() / 4 + 8 * lower;
      const bool inside = first_ + mine_ < call_.tokens && h < call_.heads;
      const T* const query = call_.query(inside ? first_ + mine_ : 0, inside ? h : 0);
#pragma unroll
      for (int d = 0; d < kColumns / 16; ++d)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int c = 16 * d + 8 * half + column;
          queries_[d].at[2 * half + lower] = inside && c < call_.d ? *reinterpret_cast<const uint32_t*>(query + c) : 0;
        }
    }
  }
  __device__ __forceinline__ int document_begin(int t) const {
    return call_.view.document_begin(call_.view.row(t), call_.view.last(t));
  }
  // Takes the keys that `count` tokens of one document see, from token `first` on. Tiles begin at the document's first
  // key, so that sums are formed in the same order wherever it lies.
  __device__ __forceinline__ void take_keys(int first, int count, int begin) {
    const SlotView& view = call_.view;
    const int64_t row = view.row(first);
    const int end = view.last(first + count - 1) + 1;
    const auto thread = static_cast<int>(threadIdx.x);
    const auto copy = [&](int j, int turn) {
      copy_rows<kKeyRows, kQueryThreads>(at_.keys(turn), call_.key(row, j), call_.d, view.slots - j, call_.d);
      commit_copies();
      const int token = first + thread / kKeyRows, slot = j + thread % kKeyRows;
      return thread < count * kKeyRows && slot < view.slots ? to_.dscores[int64_t{token} * view.slots + slot] : 0.0f;
    };
    const auto keep = [&](float gradient, int turn) {
      if (thread < kQueryTokens * kKeyRows)
        at_.gradients_of(turn, thread / kKeyRows)[thread % kKeyRows] = gradient * call_.scale;
    };
    int turn = 0, j = begin;
    keep(copy(j, 0), 0);
    while (j < end) {
      wait_copies<0>();
      __syncthreads();
      const int following = j + kKeyRows;
      float gradient = 0;
      if (following < end) gradient = copy(following, turn ^ 1);
      const int token = mine_ - (first - first_);
      if (has_rows() && token >= 0 && token < count) add_keys(at_.keys(turn), at_.gradients_of(turn, token));
      keep(gradient, turn ^ 1);
      j = following, turn ^= 1;
    }
    wait_copies<0>();
    __syncthreads();
  }
  __device__ __forceinline__ void add_keys(const SharedTile<kColumns, T>& keys, const float* gradients) {
    for (int j = 0; j < kKeyRows; j += 16) {
      const float2 of[2] = {gradients_at(gradients, j), gradients_at(gradients, j + 8)};
      if (__all_sync(0xffffffffu, of[0].x == 0 && of[0].y == 0 && of[1].x == 0 && of[1].y == 0)) continue;
      WarpSums<1, T> dots;
#pragma unroll
      for (int d = 0; d < kColumns / 16; ++d) dots.add(0, queries_[d], right_transposed(keys, j, 16 * d));
      FragmentA left;
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int lower = 0; lower < 2; ++lower) {
          const float *const two = dots.at[n] + 2 * lower, first = two[0] > 0 ? of[n].x : 0.0f,
                             second = two[1] > 0 ? of[n].y : 0.0f;
          weights_[lower] += first * two[0] + second * two[1];
          left.at[2 * n + lower] = pack_pair<T>(first, second);
        }
#pragma unroll
      for (int pair = 0; pair < kColumns / 16; ++pair) sums_.add(pair, left, right_operand(keys, j, 16 * pair));
    }
  }
  __device__ __forceinline__ static float2 gradients_at(const float* gradients, int j) {
    return *reinterpret_cast<const float2*>(gradients + j + warp_lane() % 4 * 2);
  }
  __device__ __forceinline__ void write() const {
    if (!has_rows()) return;
    const int64_t t = first_ + mine_;
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) {
      const int h = head_ + warp_lane() / 4 + 8 * lower;
      float weight = weights_[lower];
      weight += __shfl_xor_sync(0xffffffffu, weight, 1);
      weight += __shfl_xor_sync(0xffffffffu, weight, 2);
      if (h >= call_.heads) continue;
      const int64_t at = t * call_.heads + h;
      if (warp_lane() % 4 == 0) to_.dw[at] = convert<T>(weight);
      const auto w = convert<float>(call_.w[at]);
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
        const int c = 8 * n + warp_lane() % 4 * 2;
        if (c < call_.d)
          *reinterpret_cast<uint32_t*>(to_.dq + at * call_.d + c) =
              pack_pair<T>(w * sums_.at[n][2 * lower], w * sums_.at[n][2 * lower + 1]);
      }
    }
  }

  const IndexOutputs<T>& to_;
  const IndexCall<T>& call_;
  IndexQueryShared<T, kColumns> at_;
  int first_, mine_, head_;  // the block's first token, which of its tokens the warp has, and the warp's first head
  FragmentA queries_[kColumns / 16];
  WarpSums<kColumns / 16, T> sums_;
  float weights_[2] = {};
};

template <class T, int kColumns>
__global__ void __launch_bounds__(kQueryThreads)
    index_queries_tile_kernel(IndexOutputs<T> to, const IndexCall<T> call) {
  extern __shared__ __align__(16) unsigned char memory[];
  IndexQueryGradients<T, kColumns> block(to, call, memory);
  block.run();
}

// ---- dk: a block has 32 keys of a row and takes 64 heads of a token at a time, a warp 16 of the keys and of the heads
// -

constexpr int kKeyThreads = 256, kBlockKeys = 32, kHeadParts = 4;

template <class T, int kColumns>
struct IndexKeyShared {
  static constexpr int kTile = kGroupHeads * kColumns;
  static constexpr int kBytes = 2 * kTile * 2 + 2 * (kGroupHeads + kBlockKeys) * 4;
  T* tiles;
  float* numbers;
  __device__ explicit IndexKeyShared(unsigned char* memory)
      : tiles(reinterpret_cast<T*>(memory)), numbers(reinterpret_cast<float*>(tiles + 2 * kTile)) {}
  __device__ SharedTile<kColumns, T> queries(int turn) const { return {tiles + turn * kTile}; }
  __device__ float* weights(int turn) const { return numbers + turn * (kGroupHeads + kBlockKeys); }
  __device__ float* gradients(int turn) const { return weights(turn) + kGroupHeads; }
};
static_assert(IndexKeyShared<__half, 64>::kBytes >= kBlockKeys * 64 * 4);

template <class T, int kColumns>
class IndexKeyGradients {
 public:
  __device__ __forceinline__ IndexKeyGradients(const IndexOutputs<T>& to, const IndexCall<T>& call,
                                               unsigned char* memory)
      : to_(to),
        call_(call),
        at_(memory),
        row_(blockIdx.y),
        begin_(static_cast<int>(blockIdx.x) * kBlockKeys),
        slab_(own_warp() % 2 * 16),
        part_(own_warp() / 2),
        groups_((call.heads + kGroupHeads - 1) / kGroupHeads) {}

  __device__ __forceinline__ void run() {
    load_keys();
    // The tokens of the row from the first key on, as numbers of the call.
    const int64_t before = row_ * call_.view.slots - call_.view.first;
    int64_t t = before + begin_ > 0 ? before + begin_ : 0;
    const int64_t end = min(before + call_.view.slots, int64_t{call_.tokens});
    int group = 0, turn = 0;
    if (t < end && sees_block(t)) keep(copy(t, 0, 0), 0);
    while (t < end && sees_block(t)) {
      wait_copies<0>();
      __syncthreads();
      const bool last = group + 1 == groups_;
      const int64_t following = last ? t + 1 : t;
      const int following_group = last ? 0 : group + 1;
      float number = 0;
      if (following < end && sees_block(following)) number = copy(following, following_group, turn ^ 1);
      if (group * kGroupHeads + 16 * part_ < call_.heads) add_heads(turn);
      keep(number, turn ^ 1);
      t = following, group = following_group, turn ^= 1;
    }
    wait_copies<0>();
    __syncthreads();
    write();
  }

 private:
  // Documents lie side by side: once a token behind the block is in another one than the last key, so are all others.
  __device__ __forceinline__ bool sees_block(int64_t t) const {
    const SlotView& view = call_.view;
    const int last = view.last(t), end = min(begin_ + kBlockKeys, view.slots) - 1;
    return view.ids == nullptr || last <= end ||
           view.ids[row_ * view.slots + last] == view.ids[row_ * view.slots + end];
  }
  __device__ __forceinline__ void load_keys() {
    const int column = warp_lane() % 4 * 2;
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) {
      const int j = begin_ + slab_ + warp_lane() / 4 + 8 * lower;
      const T* const key = call_.key(row_, min(j, call_.view.slots - 1));
#pragma unroll
      for (int d = 0; d < kColumns / 16; ++d)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int c = 16 * d + 8 * half + column;
          keys_[d].at[2 * half + lower] = c < call_.d ? *reinterpret_cast<const uint32_t*>(key + c) : 0;
        }
    }
  }
  // Returns the thread's weight of a head or gradient of a score, for keep().
  __device__ __forceinline__ float copy(int64_t t, int group, int turn) const {
    const int head = group * kGroupHeads, own = static_cast<int>(threadIdx.x), slot = begin_ + own - kGroupHeads;
    copy_rows<kGroupHeads, kKeyThreads>(at_.queries(turn), call_.query(t, head), call_.d, call_.heads - head, call_.d);
    commit_copies();
    if (own < kGroupHeads) return head + own < call_.heads ? convert<float>(call_.w[t * call_.heads + head + own]) : 0;
    return own < kGroupHeads + kBlockKeys && slot < call_.view.slots
               ? to_.dscores[t * call_.view.slots + slot] * call_.scale
               : 0.0f;
  }
  __device__ __forceinline__ void keep(float number, int turn) const {
    if (threadIdx.x < kGroupHeads + kBlockKeys) at_.weights(turn)[threadIdx.x] = number;
  }
  __device__ __forceinline__ void add_heads(int turn) {
    const float* const gradients = at_.gradients(turn) + slab_ + warp_lane() / 4;
    const float of_keys[2] = {gradients[0], gradients[8]};
    if (__all_sync(0xffffffffu, of_keys[0] == 0 && of_keys[1] == 0)) return;
    const SharedTile<kColumns, T> queries = at_.queries(turn);
    WarpSums<1, T> dots;
#pragma unroll
    for (int d = 0; d < kColumns / 16; ++d) dots.add(0, keys_[d], right_transposed(queries, 16 * part_, 16 * d));
    FragmentA left;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float* const weights = at_.weights(turn) + 16 * part_ + 8 * n + warp_lane() % 4 * 2;
#pragma unroll
      for (int lower = 0; lower < 2; ++lower) {
        const float* const two = dots.at[n] + 2 * lower;
        left.at[2 * n + lower] = pack_pair<T>(two[0] > 0 ? of_keys[lower] * weights[0] : 0.0f,
                                              two[1] > 0 ? of_keys[lower] * weights[1] : 0.0f);
      }
    }
#pragma unroll
    for (int pair = 0; pair < kColumns / 16; ++pair)
      sums_.add(pair, left, right_operand(queries, 16 * part_, 16 * pair));
  }
  // Adds up the parts of the heads in their order, in place of the queries.
  __device__ __forceinline__ void write() {
    auto* const shared = reinterpret_cast<float*>(at_.tiles);
    static_assert(2 * IndexKeyShared<T, kColumns>::kTile * 2 >= kBlockKeys * kColumns * 4);
    for (int part = 0; part < kHeadParts; ++part) {
      if (part_ == part)
        sums_.each([&](int row, int column, float first, float second) {
          auto& two = *reinterpret_cast<float2*>(shared + (slab_ + row) * kColumns + column);
          two = part == 0 ? float2{first, second} : float2{two.x + first, two.y + second};
        });
      __syncthreads();
    }
    for (int i = static_cast<int>(threadIdx.x); i < kBlockKeys * kColumns; i += kKeyThreads) {
      const int j = begin_ + i / kColumns, c = i % kColumns;
      if (j < call_.view.slots && c < call_.d) to_.dk[(row_ * call_.view.slots + j) * call_.d + c] += shared[i];
    }
  }

  const IndexOutputs<T>& to_;
  const IndexCall<T>& call_;
  IndexKeyShared<T, kColumns> at_;
  int64_t row_;
  int begin_, slab_, part_, groups_;  // the block's first key, the warp's of it, and the warp's part of 64 heads
  FragmentA keys_[kColumns / 16];
  WarpSums<kColumns / 16, T> sums_;
};

template <class T, int kColumns>
__global__ void __launch_bounds__(kKeyThreads) index_keys_tile_kernel(IndexOutputs<T> to, const IndexCall<T> call) {
  extern __shared__ __align__(16) unsigned char memory[];
  IndexKeyGradients<T, kColumns> block(to, call, memory);
  block.run();
}

}  // namespace

void index_gradients_by_tiles(Stream& stream, const IndexGradients& to, const Tensor& dscores, const IndexInputs& in) {
  dispatch_half(in.q.dtype(), [&]<class T>() {
    const IndexCall<T> call(in);
    const IndexOutputs<T> outputs{ptr<T>(to.dq), ptr<T>(to.dw), ptr<float>(to.dk), ptr<float>(dscores)};
    const dim3 of_queries(static_cast<unsigned>((call.tokens + kQueryTokens - 1) / kQueryTokens),
                          static_cast<unsigned>((call.heads + kGroupHeads - 1) / kGroupHeads)),
        of_keys(static_cast<unsigned>((call.view.slots + kBlockKeys - 1) / kBlockKeys),
                static_cast<unsigned>(in.where.rows));
    const auto launch = [&]<int kColumns>() {
      index_queries_tile_kernel<T, kColumns>
          <<<of_queries, kQueryThreads, IndexQueryShared<T, kColumns>::kBytes, native(stream)>>>(outputs, call);
      index_keys_tile_kernel<T, kColumns>
          <<<of_keys, kKeyThreads, IndexKeyShared<T, kColumns>::kBytes, native(stream)>>>(outputs, call);
    };
    if (call.d <= 64)
      launch.template operator()<64>();
    else
      launch.template operator()<128>();
  });
}

}  // namespace witan::kernels::cuda
