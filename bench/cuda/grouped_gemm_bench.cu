// Grouped products on a GPU. First checks every product against float64 sums on difficult groups: empty ones, groups of
// one row, one far larger than the others, out of order, with gaps; rows outside the groups hold NaN, and outputs are
// poisoned. Then times them, and checks a sample of each result. Operands are random (data that toggles fewer bits runs
// faster than in training) and rotate through more than the L2 cache. "x gathered" and "dy gathered": the operand's
// rows are gathered from those of an eighth as many tokens. "with block sums": square sums of a weight gradient are
// computed as it is written (kernels/common/block_sums.h).
//   cuda_grouped_gemm_bench [check | time] [text that lines must contain]
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "witan/base/numbers/rng.h"
#include "witan/base/text.h"
#include "witan/base/threads/threads.h"
#include "witan/kernels/common/block_sums.h"
#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/grouped/grouped_gemm.h"
#include "witan/kernels/moe/dispatch.h"
#include "witan/kernels/pointwise/activation.h"

namespace witan {
namespace {

namespace twins = kernels::cuda;
using kernels::cuda::convert;
using kernels::cuda::native;
using kernels::cuda::ptr;

constexpr int kThreads = 256, kBlocks = 2048;
constexpr double kPeakFlops = 790e12, kPeakBytes = 4.3e12;  // H200, measured: dense products, copies

__device__ uint64_t mixed(uint64_t x) {
  x = (x ^ x >> 31) * 0x7fb5d329728ea185ull;
  x = (x ^ x >> 27) * 0x81dadef4bc2dd44dull;
  return x ^ x >> 33;
}

// Roughly normal, of variance 1.
template <class T>
__global__ void fill_kernel(T* to, int64_t elements, uint64_t seed) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < elements;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const uint64_t bits = mixed(seed * 0x9e3779b97f4a7c15ull + static_cast<uint64_t>(i));
    float sum = -2;
    for (int part = 0; part < 4; ++part) sum += static_cast<float>(bits >> 16 * part & 0xffff) / 65536.0f;
    to[i] = convert<T>(sum * 1.7320508f);
  }
}

__device__ int expert_of(const int64_t* begin, const int64_t* count, int experts, int64_t row) {
  for (int e = 0; e < experts; ++e)
    if (row >= begin[e] && row < begin[e] + count[e]) return e;
  return -1;
}

template <class T>
__global__ void poison_outside_kernel(T* rows, int64_t capacity, int64_t width, const int64_t* begin,
                                      const int64_t* count, int experts) {
  const int64_t row = blockIdx.x;
  if (expert_of(begin, count, experts, row) >= 0) return;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) rows[row * width + i] = convert<T>(NAN);
}

template <class T>
__global__ void fill_columns_kernel(T* rows, int64_t elements, int64_t width, int64_t columns, double value) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < elements;
       i += static_cast<int64_t>(gridDim.x) * kThreads)
    if (i % width < columns) rows[i] = convert<T>(static_cast<float>(value));
}

struct Verdict {
  unsigned long long wrong, outside, checked;
};

template <class C>
__device__ void judge(Verdict* verdict, C got, double want, int64_t terms) {
  const double value = convert<double>(got), size = sqrt(static_cast<double>(terms));
  const double allowed = sizeof(C) == 2   ? 1e-4 * size + fabs(want) / 256
                         : sizeof(C) == 4 ? 3e-5 * size + fabs(want) * 1e-5
                                          : 1e-12 * size;
  atomicAdd(&verdict->checked, 1ull);
  if (!(fabs(value - want) <= allowed)) atomicAdd(&verdict->wrong, 1ull);
}

// The i-th element to check: every element, or one of `samples` spread over all.
__device__ int64_t chosen(int64_t i, int64_t elements, int64_t samples) {
  return samples == elements ? i
                             : static_cast<int64_t>(mixed(static_cast<uint64_t>(i)) % static_cast<uint64_t>(elements));
}

// to [capacity, N], with row stride `apart`, = from [capacity, K] w[e], w[e] [N, K] or `transposed` [K, N].
template <class T>
__global__ void judge_lines_kernel(Verdict* verdict, const T* to, int64_t apart, const T* from, const T* w,
                                   const int64_t* begin, const int64_t* count, int experts, int64_t capacity, int64_t N,
                                   int64_t K, bool transposed, int64_t samples) {
  for (int64_t s = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; s < samples;
       s += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t i = chosen(s, capacity * N, samples), row = i / N, n = i % N;
    const T found = to[row * apart + n];
    const int e = expert_of(begin, count, experts, row);
    if (e < 0) {  // no group: still NaN
      if (!isnan(convert<double>(found))) atomicAdd(&verdict->outside, 1ull);
      continue;
    }
    double sum = 0;
    for (int64_t k = 0; k < K; ++k)
      sum += convert<double>(from[row * K + k]) * convert<double>(w[e * N * K + (transposed ? k * N + n : n * K + k)]);
    judge(verdict, found, sum, K);
  }
}

// dw [E, N, K] = previous value (if accumulating) + dy^T x.
template <class S, class C>
__global__ void judge_sum_kernel(Verdict* verdict, const C* dw, const C* before, const S* dy, const S* x,
                                 const int64_t* begin, const int64_t* count, int experts, int64_t N, int64_t K,
                                 int64_t samples) {
  for (int64_t s = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; s < samples;
       s += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t i = chosen(s, experts * N * K, samples), e = i / (N * K), n = i / K % N, k = i % K;
    double sum = before != nullptr ? convert<double>(before[i]) : 0;
    for (int64_t row = begin[e]; row < begin[e] + count[e]; ++row)
      sum += convert<double>(dy[row * N + n]) * convert<double>(x[row * K + k]);
    judge(verdict, dw[i], sum, count[e] + 1);
  }
}

// swiglu and apart: the product and SwiGLU of its rows, in one kernel and in two; swiglu_backward and backward_apart:
// the product and SwiGLU's gradient. Only the product is checked here, in the gradients of ups, where gates of 64 and
// weights of 1 / 64 leave it unchanged; tests compare the activation bit by bit.
enum class Op { forward, backward_input, backward_weight, swiglu, apart, swiglu_backward, backward_apart };
constexpr const char* kNames[] = {"forward",
                                  "backward input",
                                  "backward weight",
                                  "forward and SwiGLU",
                                  "forward, then SwiGLU",
                                  "backward input and SwiGLU",
                                  "backward input, then SwiGLU"};
constexpr bool activates(Op op) {
  return op == Op::swiglu || op == Op::apart;
}
constexpr bool differentiates(Op op) {
  return op == Op::swiglu_backward || op == Op::backward_apart;
}
constexpr double kOpenGate = 64;

// The operand with rows of tokens, each used by kTopk assignments.
enum class Gathers { none, x, dy };
constexpr int64_t kTopk = 8;

struct Problem {
  int64_t capacity, K, N;
  std::vector<int64_t> begin, count;
  DType in = DType::bf16, out = DType::bf16;
  Gathers gathers = Gathers::none;
  bool block_sums = false;
  int64_t tokens() const { return std::max<int64_t>(1, capacity / kTopk); }
  int64_t rows() const { return std::accumulate(count.begin(), count.end(), int64_t{0}); }
  int64_t experts() const { return std::ssize(count); }
};

std::string name_of(const Problem& p, Op op, Write write) {
  const auto [least, most] = std::minmax_element(p.count.begin(), p.count.end());
  return cat(kNames[static_cast<int>(op)], write == Write::accumulate ? ", added" : "", ": E ", p.experts(), ", rows ",
             p.rows(), *least == *most ? "" : cat(" (", *least, "..", *most, ")"), ", K ", p.K, ", N ", p.N, ", ", p.in,
             " -> ", p.out,
             p.gathers == Gathers::none ? ""
             : p.gathers == Gathers::x  ? ", x gathered"
                                        : ", dy gathered",
             p.block_sums ? ", with block sums" : "");
}

class Bench {
 public:
  Bench() : pool_(1), stream_({Device::Kind::cuda, 0}, Arena::reserve_on_gpu(0, int64_t{32} << 30), pool_) {}

  bool check(const Problem& p, Op op, Write write);
  bool time(const Problem& p, Op op, Write write);

 private:
  struct Set {
    Tensor x, y, w, dw, activated, s;  // the last two if an activation is fused
    Tensor h, dh, ds;                  // if its gradient is fused
    Tensor tokens;                     // source of the rows of x or dy, if gathered
    Tensor sums;                       // block sums of dw, if computed
    RowIndex at;
  };
  void gather(const Problem& p, const RowGroups& groups, Set& set);
  Tensor random(const Shape& shape, DType dtype) {
    Tensor out = stream_.empty(shape, dtype);
    twins::dispatch_device(dtype, [&]<class T>() {
      fill_kernel<<<kBlocks, kThreads, 0, native(stream_)>>>(ptr<T>(out), out.elements(), ++seed_);
    });
    return out;
  }
  Tensor poisoned(const Shape& shape, DType dtype) {
    Tensor out = stream_.empty(shape, dtype);
    witan::cuda::check(cudaMemsetAsync(out.raw(), 0xff, static_cast<size_t>(out.bytes()), native(stream_)),
                       "poisoning");
    return out;
  }
  RowGroups groups_of(const Problem& p) {
    RowGroups groups{
        stream_.empty({p.experts()}, DType::i64), stream_.empty({p.experts()}, DType::i64), {}, {}, p.rows()};
    stream_.write(groups.begin, p.begin.data());
    stream_.write(groups.count, p.count.data());
    return groups;
  }
  Set operands(const Problem& p, Op op, const RowGroups& groups);
  void call(const Set& set, Op op, Write write, const RowGroups& groups, Gathers gathers) {
    const RowIndex x_at = gathers == Gathers::x ? set.at : RowIndex(),
                   dy_at = gathers == Gathers::dy ? set.at : RowIndex();
    const Tensor& x = x_at.defined() ? set.tokens : set.x;
    const Tensor& dy = dy_at.defined() ? set.tokens : set.y;
    if (op == Op::forward) twins::grouped_gemm_forward(stream_, set.y, x, groups, set.w, x_at);
    if (op == Op::swiglu) twins::grouped_swiglu_forward(stream_, set.activated, set.y, x, groups, set.w, set.s, x_at);
    if (op == Op::apart) {
      twins::grouped_gemm_forward(stream_, set.y, x, groups, set.w, x_at);
      twins::swiglu_forward(stream_, set.activated, set.y, set.s, groups);
    }
    if (op == Op::backward_input) twins::grouped_gemm_backward_input(stream_, set.x, dy, groups, set.w, dy_at);
    if (op == Op::swiglu_backward)
      kernels::grouped_swiglu_backward(stream_, {set.dh, set.ds}, dy, groups, set.w, {set.h, set.s}, dy_at);
    if (op == Op::backward_apart) {
      twins::grouped_gemm_backward_input(stream_, set.x, dy, groups, set.w, dy_at);
      twins::swiglu_backward(stream_, set.dh, set.ds, set.x, set.h, set.s, groups);
    }
    if (op == Op::backward_weight)
      kernels::grouped_gemm_backward_weight(stream_, {set.dw, write, set.sums}, dy, x, groups, {dy_at, x_at});
  }
  bool sums_are_right(const Set& set);
  Verdict judge(const Problem& p, const Set& set, const Tensor& before, Op op, const RowGroups& groups, int64_t most);
  Tensor copy_of(const Tensor& tensor) {
    Tensor out = stream_.empty_like(tensor);
    stream_.copy(out, tensor);
    return out;
  }
  static const Tensor& result(const Set& set, Op op) {
    return op == Op::backward_input ? set.x : op == Op::backward_weight ? set.dw : differentiates(op) ? set.dh : set.y;
  }

  ThreadPool pool_;
  Stream stream_;
  uint64_t seed_ = 0;
};

Bench::Set Bench::operands(const Problem& p, Op op, const RowGroups& groups) {
  const auto rows = [&](int64_t width, bool output) {
    if (output) return poisoned({p.capacity, width}, p.in);
    const Tensor out = random({p.capacity, width}, p.in);
    if (p.capacity > 0 && p.rows() < p.capacity)
      twins::dispatch_device(p.in, [&]<class T>() {
        poison_outside_kernel<<<static_cast<unsigned>(p.capacity), 128, 0, native(stream_)>>>(
            ptr<T>(out), p.capacity, width, ptr<int64_t>(groups.begin), ptr<int64_t>(groups.count),
            static_cast<int>(p.experts()));
      });
    return out;
  };
  Set set;
  set.x = rows(p.K, op == Op::backward_input || differentiates(op));
  set.y = rows(p.N, op == Op::forward || activates(op));
  if (p.gathers != Gathers::none) gather(p, groups, set);
  if (activates(op)) {
    set.activated = poisoned({p.capacity, p.N / 2}, p.in);
    set.s = random({p.capacity}, accumulator(p.in));
  }
  if (differentiates(op)) {
    set.h = rows(2 * p.K, false);
    set.dh = rows(2 * p.K, true);
    set.s = random({p.capacity}, accumulator(p.in));
    set.ds = poisoned({p.capacity}, accumulator(p.in));
    const auto fill = [&](const Tensor& of, int64_t width, int64_t columns, double value) {
      twins::dispatch_device(of.dtype(), [&]<class T>() {
        fill_columns_kernel<<<kBlocks, kThreads, 0, native(stream_)>>>(ptr<T>(of), of.elements(), width, columns,
                                                                       value);
      });
    };
    fill(set.h, 2 * p.K, p.K, kOpenGate);
    fill(set.s, 1, 1, 1 / kOpenGate);
  }
  if (op == Op::backward_weight) {
    set.dw = random({p.experts(), p.N, p.K}, p.out);
    if (p.block_sums) set.sums = stream_.empty(kernels::block_sums_shape(set.dw.shape()), DType::f64);
    if (p.block_sums) twins::block_square_sums(stream_, set.sums, set.dw);
  } else
    set.w = random({p.experts(), p.N, p.K}, p.in);
  return set;
}

// Tokens and their rows in the groups: within an expert in token order, as from a router. Entries outside the groups
// have invalid indices.
void Bench::gather(const Problem& p, const RowGroups& groups, Set& set) {
  const Tensor& rows = p.gathers == Gathers::x ? set.x : set.y;
  std::vector<int64_t> index(static_cast<size_t>(p.capacity), -1);
  for (size_t e = 0; e < p.count.size(); ++e)
    for (int64_t i = 0; i < p.count[e]; ++i) {
      const int64_t apart = p.tokens() / p.count[e], shift = apart > 0 ? static_cast<int64_t>(e) * 7919 % apart : 0;
      const int64_t token = i * p.tokens() / p.count[e] + shift;
      index[static_cast<size_t>(p.begin[e] + i)] = token * kTopk + static_cast<int64_t>(e) % kTopk;
    }
  set.tokens = random({p.tokens(), rows.size(1)}, p.in);
  set.at = {stream_.empty({p.capacity}, DType::i64), kTopk};
  if (p.capacity == 0) return;
  stream_.write(set.at.index, index.data());
  twins::gather_rows(stream_, rows, set.tokens, set.at.index, kTopk);
  twins::dispatch_device(p.in, [&]<class T>() {
    poison_outside_kernel<<<static_cast<unsigned>(p.capacity), 128, 0, native(stream_)>>>(
        ptr<T>(rows), p.capacity, rows.size(1), ptr<int64_t>(groups.begin), ptr<int64_t>(groups.count),
        static_cast<int>(p.experts()));
  });
  for (int64_t& at : index) at = at < 0 ? INT64_MAX / 4 : at;
  stream_.write(set.at.index, index.data());
}

Verdict Bench::judge(const Problem& p, const Set& set, const Tensor& before, Op op, const RowGroups& groups,
                     int64_t most) {
  const Tensor on_gpu = stream_.zeros({3}, DType::i64);
  auto* verdict = reinterpret_cast<Verdict*>(on_gpu.raw());
  const auto *begin = ptr<int64_t>(groups.begin), *count = ptr<int64_t>(groups.count);
  const int E = static_cast<int>(p.experts());
  const int64_t samples = std::min(most, differentiates(op) ? p.capacity * p.K : result(set, op).elements());
  if (samples > 0)
    twins::dispatch_device(p.in, [&]<class T>() {
      if (op == Op::forward || activates(op))
        judge_lines_kernel<<<kBlocks, kThreads, 0, native(stream_)>>>(verdict, ptr<T>(set.y), p.N, ptr<T>(set.x),
                                                                      ptr<T>(set.w), begin, count, E, p.capacity, p.N,
                                                                      p.K, false, samples);
      else if (op == Op::backward_input || differentiates(op))
        judge_lines_kernel<<<kBlocks, kThreads, 0, native(stream_)>>>(
            verdict, differentiates(op) ? ptr<T>(set.dh) + p.K : ptr<T>(set.x), differentiates(op) ? 2 * p.K : p.K,
            ptr<T>(set.y), ptr<T>(set.w), begin, count, E, p.capacity, p.K, p.N, true, samples);
      else
        twins::dispatch_device(p.out, [&]<class C>() {
          judge_sum_kernel<<<kBlocks, kThreads, 0, native(stream_)>>>(verdict, ptr<C>(set.dw), ptr<C>(before),
                                                                      ptr<T>(set.y), ptr<T>(set.x), begin, count, E,
                                                                      p.N, p.K, samples);
        });
    });
  Verdict out{};
  stream_.read(&out, on_gpu);
  return out;
}

// Compares with a float64 pass over dw; a thread sums its part of a block in two chains of 32 squares in float32.
bool Bench::sums_are_right(const Set& set) {
  if (!set.sums.defined()) return true;
  const Tensor exact = stream_.empty_like(set.sums);
  twins::block_square_sums(stream_, exact, set.dw);
  std::vector<double> found(static_cast<size_t>(exact.elements())), expected(found.size());
  stream_.read(found.data(), set.sums);
  stream_.read(expected.data(), exact);
  for (size_t i = 0; i < found.size(); i += 2)
    if (!(std::abs(found[i] - expected[i]) <= 2.5e-6 * expected[i]) || found[i + 1] != expected[i + 1]) return false;
  return true;
}

bool Bench::check(const Problem& p, Op op, Write write) {
  const RowGroups groups = groups_of(p);
  const Set set = operands(p, op, groups);
  Tensor before;
  if (op == Op::backward_weight && write == Write::accumulate) before = copy_of(set.dw);
  if (op == Op::backward_weight && write == Write::overwrite)
    witan::cuda::check(cudaMemsetAsync(set.dw.raw(), 0xff, static_cast<size_t>(set.dw.bytes()), native(stream_)),
                       "poisoning");
  const Tensor start = copy_of(result(set, op));
  call(set, op, write, groups, p.gathers);
  stream_.queue()->check("a grouped product");
  const Verdict verdict = judge(p, set, before, op, groups, int64_t{1} << 22);
  const Tensor first = copy_of(result(set, op));
  stream_.copy(result(set, op), start);
  call(set, op, write, groups, p.gathers);
  std::vector<std::byte> once(static_cast<size_t>(first.bytes())), twice(once.size());
  stream_.read(once.data(), first);
  stream_.read(twice.data(), result(set, op));
  const bool sums_right = sums_are_right(set);
  const bool right = verdict.wrong == 0 && verdict.outside == 0 && once == twice && sums_right;
  std::printf("%-5s %s: %llu wrong of %llu, %llu outside%s%s\n", right ? "right" : "WRONG",
              name_of(p, op, write).c_str(), verdict.wrong, verdict.checked, verdict.outside,
              once == twice ? "" : ", not repeatable", sums_right ? "" : ", wrong block sums");
  std::fflush(stdout);
  return right;
}

bool Bench::time(const Problem& p, Op op, Write write) {
  const RowGroups groups = groups_of(p);
  std::vector<Set> sets;
  const double in = static_cast<double>(size_of(p.in)), rows = static_cast<double>(p.rows());
  const double weights = static_cast<double>(p.experts() * p.N * p.K);
  const double bytes =
      rows *
          static_cast<double>(p.K + p.N +
                              (activates(op)        ? p.N / 2
                               : differentiates(op) ? 3 * p.K
                                                    : 0)) *
          in +
      weights *
          (op != Op::backward_weight ? in : static_cast<double>(size_of(p.out)) * (write == Write::accumulate ? 2 : 1));
  do sets.push_back(operands(p, op, groups));
  while (static_cast<double>(sets.size()) * bytes < 3 * static_cast<double>(witan::cuda::properties(0).l2));
  Tensor before;
  call(sets[0], op, Write::overwrite, groups, p.gathers);
  const Verdict verdict = judge(p, sets[0], before, op, groups, 1 << 14);
  const bool right = verdict.wrong + verdict.outside == 0 && sums_are_right(sets[0]);

  // Calls are queued back to back, so that the host's part of a call is hidden, as in a step.
  constexpr int kQueued = 10;
  std::vector<cudaEvent_t> events(kQueued + 1);
  for (cudaEvent_t& event : events) cudaEventCreate(&event);
  std::vector<float> each;
  double all = 0;
  for (size_t turn = 0; all < 200;) {
    cudaEventRecord(events[0], native(stream_));
    for (int i = 1; i <= kQueued; ++i) {
      call(sets[turn++ % sets.size()], op, write, groups, p.gathers);
      cudaEventRecord(events[i], native(stream_));
    }
    witan::cuda::check(cudaEventSynchronize(events[kQueued]), "timing");
    for (int i = 2; i <= kQueued; ++i) {  // the first call included waiting for the host
      each.push_back(0);
      cudaEventElapsedTime(&each.back(), events[i - 1], events[i]);
      all += each.back();
    }
  }
  for (const cudaEvent_t event : events) cudaEventDestroy(event);
  std::nth_element(each.begin(), each.begin() + std::ssize(each) / 2, each.end());
  const double seconds = each[each.size() / 2] * 1e-3, flops = 2 * rows * static_cast<double>(p.N * p.K);
  const double floor = std::max(flops / kPeakFlops, bytes / kPeakBytes);
  std::printf("%-100s %8.3f ms %7.1f TFLOP/s %6.2f TB/s %5.2f of the floor%s\n", name_of(p, op, write).c_str(),
              seconds * 1e3, flops / seconds * 1e-12, bytes / seconds * 1e-12, floor / seconds, right ? "" : " WRONG");
  std::fflush(stdout);
  return right;
}

Problem even(int64_t rows, int64_t experts, int64_t K, int64_t N) {
  Problem p{rows, K, N, {}, std::vector<int64_t>(static_cast<size_t>(experts), rows / experts)};
  for (int64_t e = 0; e < experts; ++e) p.begin.push_back(e * (rows / experts));
  return p;
}
// Expert e of E has about 2 (e + 1) / E times the mean load.
Problem uneven(int64_t rows, int64_t experts, int64_t K, int64_t N) {
  Problem p{rows, K, N, {}, {}};
  for (int64_t e = 0, at = 0; e < experts; ++e) {
    p.begin.push_back(at);
    p.count.push_back(rows * (e + 1) * 2 / (experts * (experts + 1)));
    at += p.count.back();
  }
  return p;
}

// Assigns each row to a uniformly random expert, like a balanced router.
Problem routed(int64_t rows, int64_t experts, int64_t K, int64_t N) {
  Problem p{rows, K, N, {}, std::vector<int64_t>(static_cast<size_t>(experts))};
  const Philox rng(1, 1);
  for (int64_t row = 0; row < rows; ++row)
    ++p.count[rng.below(static_cast<uint64_t>(experts), static_cast<uint64_t>(row))];
  p.begin.resize(p.count.size());
  std::exclusive_scan(p.count.begin(), p.count.end(), p.begin.begin(), int64_t{0});
  return p;
}

std::vector<Problem> hard() {
  struct Rows {
    int64_t capacity;
    std::vector<int64_t> begin, count;
  };
  const std::vector<Rows> all = {
      {40, {3, 10, 30}, {5, 17, 1}},
      {64, {40, 0, 20, 64}, {20, 16, 0, 0}},
      {300, {0, 0, 0, 0}, {0, 0, 300, 0}},
      {1000, {0, 1, 3, 6, 11, 300, 431}, {1, 2, 3, 5, 289, 131, 569}},
      {700, {5, 69, 133, 261, 261, 453}, {64, 64, 128, 0, 192, 243}},
      {8, {0, 0}, {0, 0}},
  };
  std::vector<Problem> out;
  for (const Rows& rows : all) {
    for (const auto& [K, N] :
         {std::pair<int64_t, int64_t>{8, 8}, {136, 72}, {264, 520}, {512, 1024}, {200, 768}, {640, 304}})
      out.push_back({rows.capacity, K, N, rows.begin, rows.count});
    out.push_back({rows.capacity, 33, 131, rows.begin, rows.count});
    out.push_back({rows.capacity, 70, 90, rows.begin, rows.count, DType::f32, DType::f32});
    out.push_back({rows.capacity, 70, 90, rows.begin, rows.count, DType::f64, DType::f64});
  }
  out.push_back(uneven(5000, 96, 192, 320));
  out.push_back(uneven(40000, 40, 128, 384));
  out.push_back(even(1024, 1024, 64, 128));
  return out;
}

template <class Each>
void each_op(const Problem& p, const Each& each) {
  each(p, Op::forward, Write::overwrite);
  each(p, Op::backward_input, Write::overwrite);
  each(p, Op::swiglu_backward, Write::overwrite);
  each(p, Op::backward_weight, Write::overwrite);
  Problem summed = p;
  summed.block_sums = true;
  each(summed, Op::backward_weight, Write::overwrite);
  if (p.N % 2 == 0) each(p, Op::swiglu, Write::overwrite);
  Problem gathered = p;
  gathered.gathers = Gathers::x;
  for (const Op op : {Op::forward, Op::swiglu, Op::backward_weight})
    if (op != Op::swiglu || p.N % 2 == 0) each(gathered, op, Write::overwrite);
  gathered.gathers = Gathers::dy;
  for (const Op op : {Op::backward_input, Op::swiglu_backward, Op::backward_weight})
    each(gathered, op, Write::overwrite);
  gathered.block_sums = true;
  for (const Gathers gathers : {Gathers::x, Gathers::dy}) {
    gathered.gathers = gathers;
    each(gathered, Op::backward_weight, Write::overwrite);
  }
  each(p, Op::backward_weight, Write::accumulate);
  each(summed, Op::backward_weight, Write::accumulate);
  if (p.in != DType::bf16) return;
  Problem single = p;
  single.out = DType::f32;
  each(single, Op::backward_weight, Write::overwrite);
  each(single, Op::backward_weight, Write::accumulate);
  single.block_sums = true;
  each(single, Op::backward_weight, Write::overwrite);
}

int run(const std::string& what, const std::string& wanted) {
  Bench bench;
  bool right = true;
  const auto matches = [&](const Problem& p, Op op, Write write) {
    return name_of(p, op, write).find(wanted) != std::string::npos;
  };
  std::printf("%s\n", witan::cuda::properties(0).name.c_str());
  if (what != "time")
    for (const Problem& problem : hard())
      each_op(problem, [&](const Problem& p, Op op, Write write) {
        if (matches(p, op, write)) right = bench.check(p, op, write) && right;
      });
  if (what != "check")
    for (const Problem& problem :
         {even(32768, 8, 4096, 28672), even(32768, 8, 14336, 4096), even(262144, 64, 2048, 2048),
          even(262144, 64, 1024, 2048), even(16384, 64, 512, 3584), even(16384, 64, 1792, 512),
          routed(16384, 64, 512, 3584), routed(16384, 64, 1792, 512), uneven(32768, 8, 4096, 28672),
          uneven(262144, 64, 2048, 2048), uneven(16384, 64, 512, 3584), uneven(16384, 64, 1792, 512),
          even(512, 64, 2048, 2048), routed(196608, 128, 1536, 512), routed(262144, 128, 2048, 1536),
          routed(262144, 128, 4096, 2048), routed(262144, 64, 2048, 2048), routed(196608, 128, 256, 1536),
          routed(262144, 128, 768, 2048)})
      each_op(problem, [&](const Problem& p, Op op, Write write) {
        if (matches(p, op, write)) right = bench.time(p, op, write) && right;
        if (op == Op::swiglu && matches(p, Op::apart, write)) bench.time(p, Op::apart, write);
        if (op == Op::swiglu_backward && matches(p, Op::backward_apart, write))
          bench.time(p, Op::backward_apart, write);
      });
  std::printf(right ? "all right\n" : "SOME ARE WRONG\n");
  return right ? 0 : 1;
}

}  // namespace
}  // namespace witan

int main(int argc, char** argv) {
  if (witan::cuda::devices() == 0) {
    std::fprintf(stderr, "%s\n", witan::cuda::why_none().c_str());
    return 1;
  }
  const std::string what = argc > 1 ? argv[1] : "";
  return witan::run(what, argc > 2 ? argv[2] : "");
}
