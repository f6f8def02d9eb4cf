// Three kernels, of which the second is left out if no token is drawn. Blocks share a row to find its largest logit and
// then the weights: their sums over pieces for a draw by id, a histogram for a draw by rank. At last a block per row
// chooses. By id it reads the one piece in which the running sum passes the drawn point. By rank it reads the row for
// the candidates, the tokens in the bins that the filters can reach, and finds thresholds among them by radix
// selection: the running sum of weights, or of ones, over 8 bits of the logits' order after the other.
#include "witan/kernels/vocabulary/cuda/likeliest.cuh"
#include "witan/kernels/vocabulary/sampling_rules.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 1024, kDigits = 256;
constexpr int kBins = 2048, kBinsOfHalving = 53, kMostCandidates = 4096;
static_assert(kBinsOfHalving * rules::kMostHalvings < kBins);
using Sum = unsigned long long;

// The last kernel's shared memory.
struct Shared {
  union {
    Sum weights[kPiece];  // of the piece in which a token is drawn by id
    struct {
      uint32_t orders[kMostCandidates];
      int32_t ids[kMostCandidates];
    } candidates;
  };
  Sum digits[kDigits], warps[kThreads / 32];
  int count;  // candidates
  int index;
  Sum before;
};

__device__ __forceinline__ int bin_of(float halvings) {
  return static_cast<int>(halvings * kBinsOfHalving);
}

// Scratch of the kernels.
struct Work {
  Key* keys;        // [rows, pieces]
  Sum* sums;        // [rows, pieces]: weights of pieces, for rows that are drawn by id
  Sum* histograms;  // [rows, kBins], zeroed: for rows that are drawn by rank, tokens if top_k is set, else weights
  int pieces;
};

// Adds a piece to the row's histogram. A weight is added in two parts of 20 bits, of which sums over a piece have 32.
template <class T, int N>
__device__ void add_to_histogram(Sum* histogram, const T* row, float top, const SamplingRow& choice) {
  static_assert(kTopWeight >> 20 <= 1u << 19 && kPiece <= 1 << 12);
  __shared__ uint32_t low[kBins], high[kBins];
  for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kPieceThreads) low[i] = high[i] = 0;
  __syncthreads();
  for_piece<T, N>(row, static_cast<int>(blockIdx.y), choice.words, [&](int, float logit) {
    const float halvings = rules::halvings_of(top - logit, choice);
    if (!(halvings <= rules::kMostHalvings)) return;
    const int bin = bin_of(halvings);
    if (choice.top_k > 0) {
      atomicAdd(&low[bin], 1u);
      return;
    }
    const uint64_t weight = rules::weight_of(top - logit, choice);
    atomicAdd(&low[bin], static_cast<uint32_t>(weight) & 0xfffffu);
    atomicAdd(&high[bin], static_cast<uint32_t>(weight >> 20));
  });
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kPieceThreads)
    if (const Sum sum = (static_cast<Sum>(high[i]) << 20) + low[i]; sum > 0) atomicAdd(&histogram[i], sum);
}

// Block (i, j) adds the weights of piece j of row i.
template <class T, int N>
__global__ void __launch_bounds__(kPieceThreads)
    weigh_kernel(Work work, const T* logits, int64_t V, const SamplingRow* rows) {
  __shared__ Sum shared[kPieceThreads / 32];
  wait_for_earlier();
  let_next_begin();
  const int64_t t = blockIdx.x;
  const SamplingRow choice = rows[t];
  const Key best = likeliest_of(work.keys + t * work.pieces, work.pieces);
  if (!is_token(best) || choice.choice == Choice::likeliest) return;
  const float top = logit_of(static_cast<uint32_t>(best >> 32));
  const T* const row = logits + t * V;
  if (choice.choice == Choice::by_rank) return add_to_histogram<T, N>(work.histograms + t * kBins, row, top, choice);
  Sum sum = 0;
  for_piece<T, N>(row, static_cast<int>(blockIdx.y), choice.words,
                  [&](int, float logit) { sum += rules::kept_weight_of(top - logit, choice); });
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) work.sums[t * work.pieces + blockIdx.y] = sum;
}

// The first of `count` numbers at which their running sum exceeds `target`, and the sum before it, on all threads of
// the block; index = count if none does.
struct Passed {
  int index;
  Sum before;
};
__device__ Passed first_beyond(Shared& s, const Sum* numbers, int count, Sum target) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int each = (count + kThreads - 1) / kThreads, begin = thread * each, end = min(begin + each, count);
  Sum own = 0;
  for (int i = begin; i < end; ++i) own += numbers[i];
  Sum through = own;
#pragma unroll
  for (int apart = 1; apart < 32; apart *= 2) {
    const Sum left = __shfl_up_sync(0xffffffffu, through, apart);
    if (lane >= apart) through += left;
  }
  if (lane == 31) s.warps[warp] = through;
  if (thread == 0) s.index = count, s.before = 0;
  __syncthreads();
  Sum before = warp_sum(lane < warp ? s.warps[lane] : Sum{0}) + through - own;
  if (before <= target && target - before < own) {
    int i = begin;
    for (; target - before >= numbers[i]; ++i) before += numbers[i];
    s.index = i;
    s.before = before;
  }
  __syncthreads();
  const Passed passed{s.index, s.before};
  __syncthreads();
  return passed;
}

// Tokens whose order is above `order`, and the first `ties` of those that are equal to it; by default all.
struct Bound {
  uint32_t order = 0;
  Sum ties = 0;
};

// Moves the bound to the token at which the running sum of of(order) exceeds `target`, that token included, over the
// tokens `within` the bound, the largest order first. each(add) calls add(order) for all tokens. Unchanged if the sum
// does not exceed it.
template <class Each, class Measure>
__device__ Bound bound_beyond(Shared& s, const Each& each, const Measure& of, Sum target, const Bound& within) {
  uint32_t found = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = static_cast<int>(threadIdx.x); i < kDigits; i += kThreads) s.digits[i] = 0;
    __syncthreads();
    const auto add = [&](uint32_t order, Sum tokens) {
      const uint32_t differs = (order ^ found) >> shift;
      if (differs < kDigits) atomicAdd(&s.digits[kDigits - 1 - ((order >> shift) & (kDigits - 1))], tokens * of(order));
    };
    each([&](uint32_t order) {
      if (order > within.order) add(order, 1);
    });
    if (threadIdx.x == 0 && within.ties > 0) add(within.order, within.ties);
    __syncthreads();
    const Passed passed = first_beyond(s, s.digits, kDigits, target);
    if (passed.index == kDigits) return within;
    target -= passed.before;
    found |= static_cast<uint32_t>(kDigits - 1 - passed.index) << shift;
  }
  return {found, target / of(found) + 1};
}

// The sum of of(order) over the tokens within a bound.
template <class Each, class Measure>
__device__ Sum sum_within(Shared& s, const Each& each, const Measure& of, const Bound& within) {
  Sum sum = threadIdx.x == 0 && within.ties > 0 ? within.ties * of(within.order) : 0;
  each([&](uint32_t order) {
    if (order > within.order) sum += of(order);
  });
  return block_sum(sum, s.warps);
}

// Chooses among tokens that each(visit) calls visit(order, id) for. `weight`: of the row, where top_k does not apply.
template <class Each>
__device__ int32_t choose_by_rank(Shared& s, const Each& each, float top, const SamplingRow& choice, Sum weight) {
  const auto orders = [&](const auto& visit) { each([&](uint32_t order, int32_t) { visit(order); }); };
  const auto one = [](uint32_t) { return Sum{1}; };
  const auto weight_of = [&](uint32_t order) { return Sum{rules::weight_of(top - logit_of(order), choice)}; };
  const auto kept_of = [&](uint32_t order) { return Sum{rules::kept_weight_of(top - logit_of(order), choice)}; };
  Bound kept;
  if (choice.top_k > 0) kept = bound_beyond(s, orders, one, static_cast<Sum>(choice.top_k) - 1, kept);
  if (choice.top_p < 1) {
    const Sum total = choice.top_k > 0 ? sum_within(s, orders, weight_of, kept) : weight;
    kept = bound_beyond(s, orders, weight_of, rules::share_of(total, choice.top_p) - 1, kept);
  }
  const Sum drawn = rules::drawn_of(sum_within(s, orders, kept_of, kept), choice.draw);
  const Bound last = bound_beyond(s, orders, kept_of, drawn, kept);
  // Of the tokens with this order, the one with last.ties - 1 lower ids.
  const auto ids = [&](const auto& visit) {
    each([&](uint32_t order, int32_t id) {
      if (order == last.order) visit(~static_cast<uint32_t>(id));
    });
  };
  return static_cast<int32_t>(~bound_beyond(s, ids, one, last.ties - 1, Bound{}).order);
}

template <class T, int N>
__device__ int32_t draw_by_rank(Shared& s, const Sum* histogram, const T* row, float top, const SamplingRow& choice) {
  Sum total = 0;
  for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kThreads) total += histogram[i];
  total = block_sum(total, s.warps);
  const Sum wanted = choice.top_k > 0 ? static_cast<Sum>(choice.top_k) : rules::share_of(total, choice.top_p);
  const int last = first_beyond(s, histogram, kBins, wanted - 1).index;
  const auto each = [&](const auto& visit) {
    for_logits<T, N, kThreads, 2>(row, 0, choice.words, [&](int id, float logit) {
      const float halvings = rules::halvings_of(top - logit, choice);
      if (halvings <= rules::kMostHalvings && bin_of(halvings) <= last) visit(order_of(logit), id);
    });
  };
  if (threadIdx.x == 0) s.count = 0;
  __syncthreads();
  bool full = false;
  each([&](uint32_t order, int32_t id) {
    if (full) return;
    const int at = atomicAdd(&s.count, 1);
    full = at >= kMostCandidates;
    if (!full) s.candidates.orders[at] = order, s.candidates.ids[at] = id;
  });
  __syncthreads();
  const int count = s.count;
  if (count > kMostCandidates) return choose_by_rank(s, each, top, choice, total);  // reads the row again and again
  const auto candidates = [&](const auto& visit) {
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads)
      visit(s.candidates.orders[i], s.candidates.ids[i]);
  };
  return choose_by_rank(s, candidates, top, choice, total);
}

template <class T>
__device__ int32_t draw_by_id(Shared& s, const Sum* sums, int pieces, const T* row, float top,
                              const SamplingRow& choice) {
  Sum total = 0;
  for (int i = static_cast<int>(threadIdx.x); i < pieces; i += kThreads) total += sums[i];
  const Sum drawn = rules::drawn_of(block_sum(total, s.warps), choice.draw);
  const Passed piece = first_beyond(s, sums, pieces, drawn);
  const int begin = piece.index * kPiece;
  for (int i = static_cast<int>(threadIdx.x); i < kPiece; i += kThreads)
    s.weights[i] =
        begin + i < choice.words ? rules::kept_weight_of(top - convert<float>(row[begin + i]), choice) : Sum{0};
  __syncthreads();
  return begin + first_beyond(s, s.weights, kPiece, drawn - piece.before).index;
}

// A block per row.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    choose_kernel(int32_t* ids, Work work, const T* logits, int64_t V, const SamplingRow* rows) {
  __shared__ Shared s;
  wait_for_earlier();
  let_next_begin();
  const int64_t t = blockIdx.x;
  const SamplingRow choice = rows[t];
  const Key best = likeliest_of(work.keys + t * work.pieces, work.pieces);
  int32_t id = id_of(best);
  if (id >= 0 && choice.choice != Choice::likeliest) {
    const float top = logit_of(static_cast<uint32_t>(best >> 32));
    const T* const row = logits + t * V;
    id = choice.choice == Choice::by_id ? draw_by_id(s, work.sums + t * work.pieces, work.pieces, row, top, choice)
                                        : draw_by_rank<T, N>(s, work.histograms + t * kBins, row, top, choice);
  }
  if (threadIdx.x == 0) ids[t] = id;
}

Work work_for(Stream& stream, int64_t rows, int pieces) {
  constexpr int64_t kBytes = sizeof(Sum);
  static_assert(sizeof(Key) == kBytes);
  const int64_t each = rows * pieces;
  auto* const keys = reinterpret_cast<Key*>(stream.scratch((2 * each + rows * kBins) * kBytes));
  return {keys, keys + each, keys + 2 * each, pieces};
}

}  // namespace

void sample_tokens(Stream& stream, const Tensor& ids, const Tensor& logits, const Tensor& rows, Choice most) {
  const int64_t n = logits.size(0), V = logits.size(1);
  if (n == 0) return;
  const Work work = work_for(stream, n, pieces_of(V));
  const auto* const choices = ptr<SamplingRow>(rows);
  const dim3 blocks(static_cast<unsigned>(n), static_cast<unsigned>(work.pieces));
  if (most == Choice::by_rank)
    witan::cuda::check(
        cudaMemsetAsync(work.histograms, 0, sizeof(Sum) * static_cast<size_t>(n * kBins), native(stream)),
        "zeroing histograms");
  dispatch_packs(logits, [&]<class T, int N>() {
    const T* const from = ptr<T>(logits);
    launch_early(stream, likeliest_of_pieces<T, N>, blocks, kPieceThreads, 0, work.keys, from, V, 0, choices);
    if (most != Choice::likeliest)
      launch_early(stream, weigh_kernel<T, N>, blocks, kPieceThreads, 0, work, from, V, choices);
    launch_early(stream, choose_kernel<T, N>, dim3(static_cast<unsigned>(n)), kThreads, 0, ptr<int32_t>(ids), work,
                 from, V, choices);
  });
}

}  // namespace witan::kernels::cuda
