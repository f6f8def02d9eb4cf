// SOAP on a GPU, without waiting for the host. First bases come from Jacobi rotations, half as many at a time as the
// matrix has rows, in a number of sweeps that is fixed in advance. Later bases come from block Gram-Schmidt, run twice,
// in which all work but that within blocks of rows is matrix products. Both give LAPACK's vectors, some of them
// negated, which does not change anything that SOAP computes.
#include <cmath>

#include "witan/kernels/common/cuda/update.cuh"
#include "witan/kernels/gemm/gemm.h"
#include "witan/kernels/optimizer/soap.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256, kPartials = 256;
constexpr int64_t kBlockRows = 32;

unsigned blocks_of(Stream& stream, int64_t elements) {
  return blocks_for(stream, (elements + kThreads - 1) / kThreads);
}

template <class A, class G>
__global__ void __launch_bounds__(kThreads) moments_kernel(A* m, A* outer, A* scaled, const G* gradient,
                                                           int64_t elements, const double* step, SoapMomentArgs args) {
  const bool skip = step[step_value::skip] != 0, first = step[step_value::update] <= 1;
  const A scale = A(step[step_value::gradient_scale]), weight = A(sqrt(args.factor_weight));
  const A beta1 = A(args.beta1), to_m = A(1 - args.beta1);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < elements; i += stride) {
    const A g = skip ? A(0) : scale * convert<A>(gradient[i]);
    scaled[i] = g;
    outer[i] = weight * g;
    if (!skip && !first) m[i] = beta1 * m[i] + to_m * g;
  }
}

template <class A>
__global__ void __launch_bounds__(kThreads)
    direction_kernel(A* direction, A* v, const A* gradient, const A* m, int64_t elements, const double* step,
                     SoapDirectionArgs args) {
  const double s = step[step_value::update] - 1;
  const bool still = step[step_value::skip] != 0 || s <= 0;
  const A beta2 = A(args.beta2), to_v = A(1 - args.beta2), eps = A(args.eps);
  const double kept = 1 - step[args.rate] * (args.weight_decay * step[step_value::weight_decay]);
  const A factor = still ? A(0) : A(kept * sqrt(1 - pow(args.beta2, s)) / (1 - pow(args.beta1, s)));
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < elements; i += stride) {
    if (still) {
      direction[i] = A(0);
      continue;
    }
    const A square = v[i] = beta2 * v[i] + to_v * gradient[i] * gradient[i];
    direction[i] = factor * m[i] / (sqrt(square) + eps);
  }
}

// Two rows and columns that a rotation mixes. In the `players` - 1 rounds of a sweep, every two meet once (a
// round-robin tournament: one stays, the others rotate). If `players` is one more than the rows, the last is a bye.
struct Pair {
  int p, q;
};
__device__ __forceinline__ Pair pair_of(int k, int round, int players) {
  const int others = players - 1;
  if (k == 0) return {round, others};
  const int a = (round + k) % others, b = (round - k + others) % others;
  return a < b ? Pair{a, b} : Pair{b, a};
}

template <class A>
__global__ void __launch_bounds__(kThreads) angles_kernel(A* angles, const A* a, int n, int round, int players) {
  const int k = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (k >= players / 2) return;
  const auto [p, q] = pair_of(k, round, players);
  double cosine = 1, sine = 0;
  if (q < n) {
    const auto at = [&](int64_t r, int64_t c) { return static_cast<double>(a[r * n + c]); };
    const double off = at(p, q), tau = (at(q, q) - at(p, p)) / (2 * off);
    if (off != 0 && isfinite(tau)) {
      const double tangent = copysign(1.0, tau) / (fabs(tau) + sqrt(1 + tau * tau));
      cosine = 1 / sqrt(1 + tangent * tangent);
      sine = tangent * cosine;
    }
  }
  angles[2 * k] = A(cosine);
  angles[2 * k + 1] = A(sine);
}

// One thread per four elements of a [n, n] at which two pairs meet and, in blocks with z = 1, per two elements of a
// column of the vectors. All rotations of a round are applied at once, since no element belongs to two threads.
template <class A>
__global__ void __launch_bounds__(kThreads)
    rotate_kernel(A* a, A* vectors, const A* angles, int n, int round, int players) {
  const int l = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const int k = static_cast<int>(blockIdx.y);
  const auto [p, q] = pair_of(k, round, players);
  const A cosine = angles[2 * k], sine = angles[2 * k + 1];
  const auto turn = [](A c, A s, A& first, A& second) {
    const A before = first;
    first = c * before - s * second;
    second = s * before + c * second;
  };
  if (blockIdx.z == 1) {
    for (int column = l; column < n; column += static_cast<int>(gridDim.x) * kThreads) {
      if (q >= n) return;
      turn(cosine, sine, vectors[static_cast<int64_t>(p) * n + column], vectors[static_cast<int64_t>(q) * n + column]);
    }
    return;
  }
  if (l >= players / 2) return;
  const auto [r, t] = pair_of(l, round, players);
  const A its_cosine = angles[2 * l], its_sine = angles[2 * l + 1];
  A* const rows[2] = {a + static_cast<int64_t>(p) * n, a + static_cast<int64_t>(q) * n};
  A at[2][2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const bool inside = i == 0 || q < n;
    at[i][0] = inside ? rows[i][r] : A(0);
    at[i][1] = inside && t < n ? rows[i][t] : A(0);
  }
  turn(cosine, sine, at[0][0], at[1][0]);
  turn(cosine, sine, at[0][1], at[1][1]);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    turn(its_cosine, its_sine, at[i][0], at[i][1]);
    if (i == 1 && q >= n) continue;
    rows[i][r] = at[i][0];
    if (t < n) rows[i][t] = at[i][1];
  }
}

// a = from, vectors = I
template <class A>
__global__ void __launch_bounds__(kThreads) begin_kernel(A* a, A* vectors, const A* from, int64_t n) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n * n; i += stride) {
    a[i] = from[i];
    vectors[i] = A(i % (n + 1) == 0);
  }
}

template <class A>
__global__ void __launch_bounds__(kThreads) diagonal_kernel(double* values, const A* a, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) values[i] = static_cast<double>(a[i * (n + 1)]);
}

// order[r] = the index of the r-th largest value. Values below `resolved` times the largest count as equal, as do NaNs;
// of equal values the first comes first.
__global__ void __launch_bounds__(kThreads) order_kernel(int* order, const double* values, int n, double resolved) {
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i >= n) return;
  double most = 0;
  for (int j = 0; j < n; ++j) most = fmax(most, values[j]);
  const auto key = [&](int j) { return fmax(resolved * most, values[j]); };
  const double own = key(i);
  int before = 0;
  for (int j = 0; j < n; ++j) before += key(j) > own || (key(j) == own && j < i);
  order[before] = i;
}

// One block per row i: values[i] = <basis[i], product[i]>, squares[i] = ||product[i]||^2.
template <class A>
__global__ void __launch_bounds__(kThreads)
    estimate_kernel(double* values, double* squares, const A* basis, const A* product, int64_t n) {
  __shared__ double of_warps[kThreads / 32];
  double dot = 0, square = 0;
  for (int64_t c = threadIdx.x; c < n; c += kThreads) {
    const auto p = static_cast<double>(product[blockIdx.x * n + c]);
    dot += static_cast<double>(basis[blockIdx.x * n + c]) * p;
    square += p * p;
  }
  dot = block_sum(dot, of_warps);
  square = block_sum(square, of_warps);
  if (threadIdx.x != 0) return;
  values[blockIdx.x] = dot;
  squares[blockIdx.x] = square;
}

// One block per row: writes the rows in order, scaled to length 1. A row with no direction left (kResolved) keeps its
// former one. least[row] is the length that must remain after the projection onto the rows before.
template <class A>
__global__ void __launch_bounds__(kThreads) unit_rows_kernel(A* rows, double* least, const A* product, const A* basis,
                                                             const double* squares, const int* order, int64_t n) {
  __shared__ double of_warps[kThreads / 32];
  double most = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) most = fmax(most, squares[i]);
  most = sqrt(block_max(most, of_warps));
  const int64_t from = order[blockIdx.x];
  const double length = sqrt(squares[from]);
  const bool vanished = length <= kResolved * most;
  const double factor = vanished ? 1 : 1 / length;
  const A* source = (vanished ? basis : product) + from * n;
  for (int64_t c = threadIdx.x; c < n; c += kThreads)
    rows[blockIdx.x * n + c] = A(factor * static_cast<double>(source[c]));
  if (threadIdx.x != 0) return;
  const auto left = static_cast<double>(n - blockIdx.x);
  least[blockIdx.x] = vanished ? sqrt(kFairShare * left / static_cast<double>(n)) : kResolved * most * factor;
}

constexpr int kOrthonormalThreads = 1024;

// One block subtracts a row's projection onto the orthonormal rows [0, count) of q, and returns the squared length of
// the remainder.
template <class A>
__device__ double clear_row(A* row, const A* q, int64_t count, int64_t n, double* dots, double* of_warps) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  double square = 0;
  for (int64_t first = 0; first == 0 || first < count; first += kBlockRows) {
    const int rows = static_cast<int>(count - first < kBlockRows ? count - first : kBlockRows);
    const A* const from = q + first * n;
    if (warp < rows) {
      double dot = 0;
      for (int64_t c = lane; c < n; c += 32)
        dot += static_cast<double>(row[c]) * static_cast<double>(from[warp * n + c]);
      dot = warp_sum(dot);
      if (lane == 0) dots[warp] = dot;
    }
    __syncthreads();
    square = 0;
    for (int64_t c = threadIdx.x; c < n; c += kOrthonormalThreads) {
      auto value = static_cast<double>(row[c]);
      for (int j = 0; j < rows; ++j) value -= dots[j] * static_cast<double>(from[j * n + c]);
      row[c] = A(value);
      square += value * value;
    }
    __syncthreads();
  }
  return block_sum(square, of_warps);
}

// The replacements of rows whose remainder is too short: rows of `former` in `order`, from the row's own on.
template <class A>
struct Replacements {
  const A* former;
  const int* order;
  const double* least;  // null: no row is replaced
};

// One block copies rows [first, first + count) from `from`, where they are orthogonal to the earlier rows of q [n, n],
// and makes them orthonormal in two passes.
template <class A>
__global__ void __launch_bounds__(kOrthonormalThreads)
    orthonormal_kernel(A* q, const A* from, int64_t first, int count, int64_t n, Replacements<A> instead) {
  __shared__ double of_warps[kOrthonormalThreads / 32], dots[kBlockRows];
  A* const to = q + first * n;
  for (int64_t i = threadIdx.x; i < count * n; i += kOrthonormalThreads) to[i] = from[i];
  __syncthreads();
  for (int r = 0; r < count; ++r) {
    A* const row = to + r * n;
    const int64_t at = first + r;
    for (int pass = 0; pass < 2; ++pass) {
      double square = clear_row(row, to, r, n, dots, of_warps);
      if (pass == 0 && instead.least != nullptr && !(square > instead.least[at] * instead.least[at])) {
        const double fair = kFairShare * static_cast<double>(n - at) / static_cast<double>(n);
        square = 0;
        for (int64_t k = 0; k < n && !(square >= fair); ++k) {
          const A* const source = instead.former + instead.order[(at + k) % n] * n;
          for (int64_t c = threadIdx.x; c < n; c += kOrthonormalThreads) row[c] = source[c];
          __syncthreads();
          square = clear_row(row, q, at, n, dots, of_warps);
        }
      }
      const double factor = 1 / sqrt(square);
      for (int64_t c = threadIdx.x; c < n; c += kOrthonormalThreads) row[c] = A(factor * static_cast<double>(row[c]));
      __syncthreads();
    }
  }
}

// ends[j] = the row after the last one that cannot be told apart from row j (kResolved), with values in this order.
__global__ void __launch_bounds__(kThreads) clusters_kernel(int* ends, const double* values, const int* order, int n) {
  const int j = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (j >= n) return;
  const double apart = kResolved * values[order[0]];
  int end = j + 1;
  while (end < n && !(values[order[end - 1]] - values[order[end]] > apart)) ++end;
  ends[j] = end;
}

// The reflection of rows [j, ends[j]) after which row j is the projection of a unit vector onto their span: of the
// first unit vector whose remainder beside the previous rows is long enough (kFairShare). One block finds it
// (pivot_kernel), and then all columns are reflected (reflect_kernel).
struct Settling {
  const int* ends;
  double *left, *v,
      *factor;  // squared remainder of each unit vector [n]; the reflection's vector [n], and 2 / its square
};
template <class A>
__global__ void __launch_bounds__(kThreads) pivot_kernel(Settling to, const A* rows, int j, int n) {
  __shared__ double of_warps[kThreads / 32];
  __shared__ int pivot;
  const int end = to.ends[j];
  if (end - j < 2) return;
  if (threadIdx.x == 0) pivot = n - 1;
  const bool starts = j == 0 || to.ends[j - 1] != end;
  for (int c = static_cast<int>(threadIdx.x); starts && c < n; c += kThreads) {
    to.left[c] = 0;
    for (int r = j; r < end; ++r) {
      const auto value = static_cast<double>(rows[static_cast<int64_t>(r) * n + c]);
      to.left[c] += value * value;
    }
  }
  __syncthreads();
  const double fair = kFairShare * (end - j) / n;
  for (int c = static_cast<int>(threadIdx.x); c < n; c += kThreads)
    if (to.left[c] >= fair) atomicMin(&pivot, c);
  __syncthreads();
  double square = 0;
  for (int r = j + static_cast<int>(threadIdx.x); r < end; r += kThreads) {
    to.v[r] = static_cast<double>(rows[static_cast<int64_t>(r) * n + pivot]);
    square += to.v[r] * to.v[r];
  }
  square = block_sum(square, of_warps);
  if (threadIdx.x != 0) return;
  const double first = to.v[j];
  to.v[j] += copysign(sqrt(square), first);
  const double of_vector = square - first * first + to.v[j] * to.v[j];
  *to.factor = of_vector > 0 ? 2 / of_vector : 0;
}
template <class A>
__global__ void __launch_bounds__(kThreads) reflect_kernel(A* rows, Settling by, int j, int n) {
  const int end = by.ends[j], c = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (end - j < 2 || c >= n) return;
  double dot = 0;
  for (int r = j; r < end; ++r) dot += by.v[r] * static_cast<double>(rows[static_cast<int64_t>(r) * n + c]);
  dot *= *by.factor;
  for (int r = j; r < end; ++r) {
    A& at = rows[static_cast<int64_t>(r) * n + c];
    at = A(static_cast<double>(at) - by.v[r] * dot);
  }
  const auto own = static_cast<double>(rows[static_cast<int64_t>(j) * n + c]);
  by.left[c] -= own * own;
}

// partials[b] = the number of non-finite elements in block b's part.
template <class A>
__global__ void __launch_bounds__(kThreads) not_finite_kernel(double* partials, const A* x, int64_t elements) {
  __shared__ double of_warps[kThreads / 32];
  double sum = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < elements; i += kPartials * kThreads)
    sum += !isfinite(x[i]);
  sum = block_sum(sum, of_warps);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__device__ __forceinline__ bool refused(const double* partials, const double* step) {
  __shared__ double of_warps[kThreads / 32];
  static_assert(kPartials == kThreads);
  return block_sum(partials[threadIdx.x], of_warps) != 0 || step[step_value::skip] != 0;
}

// Copies `from` to `to` [rows, columns] with its rows or, if `of_columns`, its columns in this order, unless refused.
// order may be null.
struct Reordered {
  int64_t rows, columns;
  const int* order;
  bool of_columns;
};
template <class A>
__global__ void __launch_bounds__(kThreads)
    keep_kernel(A* to, const A* from, Reordered shape, const double* partials, const double* step) {
  if (refused(partials, step)) return;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < shape.rows * shape.columns;
       i += stride) {
    int64_t row = i / shape.columns, column = i % shape.columns;
    if (shape.order != nullptr) (shape.of_columns ? column : row) = shape.order[shape.of_columns ? column : row];
    to[i] = from[row * shape.columns + column];
  }
}

// The float64 arrays come first, so that they are aligned in memory of any dtype.
template <class A>
struct Room {
  Room(const Tensor& work, int64_t n) : work_(work) {
    constexpr int64_t kOfDouble = static_cast<int64_t>(sizeof(double) / sizeof(A));
    partials = reinterpret_cast<double*>(take(kPartials * kOfDouble).raw());
    values = reinterpret_cast<double*>(take(n * kOfDouble).raw());
    squares = reinterpret_cast<double*>(take(n * kOfDouble).raw());
    least = reinterpret_cast<double*>(take((n + 1) * kOfDouble).raw());
    order = reinterpret_cast<int*>(take(n).raw());
    first = take(n * n).reshape({n, n});
    second = take(n * n).reshape({n, n});
  }
  Tensor take(int64_t elements) { return work_.narrow(0, std::exchange(at_, at_ + elements), elements); }

  double *partials, *values, *squares, *least;  // [kPartials], [n], [n], [n + 1]
  int* order;                                   // [n]
  Tensor first, second;                         // [n, n]

 private:
  const Tensor& work_;
  int64_t at_ = 0;
};

template <class A>
void first_basis(Stream& stream, const Tensor& basis, const Tensor& factor, Room<A> room, const double* step) {
  const auto n = static_cast<int>(factor.size(0));
  const int players = n + n % 2, pairs = players / 2, sweeps = sizeof(A) == 8 ? 12 : 10;
  const auto queue = native(stream);
  const Tensor angles = room.take(2 * pairs);
  A *a = ptr<A>(room.first), *vectors = ptr<A>(room.second);
  const unsigned all = blocks_of(stream, factor.elements()),
                 across = static_cast<unsigned>((n + kThreads - 1) / kThreads);
  begin_kernel<<<all, kThreads, 0, queue>>>(a, vectors, ptr<A>(factor), n);
  for (int sweep = 0; sweep < (n > 1 ? sweeps : 0); ++sweep)
    for (int round = 0; round < players - 1; ++round) {
      angles_kernel<<<across, kThreads, 0, queue>>>(ptr<A>(angles), a, n, round, players);
      rotate_kernel<<<dim3(across, static_cast<unsigned>(pairs), 2), kThreads, 0, queue>>>(a, vectors, ptr<A>(angles),
                                                                                           n, round, players);
    }
  diagonal_kernel<<<across, kThreads, 0, queue>>>(room.values, a, n);
  order_kernel<<<across, kThreads, 0, queue>>>(room.order, room.values, n, 0);
  // Rotations by non-finite angles are left out, so the vectors are always finite; only `a` need be checked.
  not_finite_kernel<<<kPartials, kThreads, 0, queue>>>(room.partials, a, factor.elements());
  keep_kernel<<<all, kThreads, 0, queue>>>(a, vectors, {n, n, room.order, false}, room.partials, step);
  int* const ends = reinterpret_cast<int*>(room.take(n).raw());
  clusters_kernel<<<across, kThreads, 0, queue>>>(ends, room.values, room.order, n);
  const Settling settling{ends, room.squares, room.least, room.least + n};
  for (int j = 0; j + 1 < n; ++j) {
    pivot_kernel<<<1, kThreads, 0, queue>>>(settling, a, j, n);
    reflect_kernel<<<across, kThreads, 0, queue>>>(a, settling, j, n);
  }
  keep_kernel<<<all, kThreads, 0, queue>>>(ptr<A>(basis), a, {n, n, nullptr, false}, room.partials, step);
}

// Makes the rows of q, of length 1, orthonormal in order, and replaces some of them. Each block of rows is made
// orthogonal to the earlier rows by two products, and within itself by a kernel. Both are done twice, since the first
// pass removes most of a row that is nearly a combination of others, and leaves rounding errors.
template <class A>
void orthonormalize(Stream& stream, const Tensor& q, Room<A> room, Replacements<A> instead) {
  const int64_t n = q.size(0);
  const Tensor dots = room.take(kBlockRows * n), rest = room.take(kBlockRows * n);
  const double* const least = instead.least;
  for (int64_t first = 0; first < n; first += kBlockRows) {
    const int64_t rows = std::min(kBlockRows, n - first);
    instead.least = least;
    const Tensor block = q.narrow(0, first, rows), left = rest.narrow(0, 0, rows * n).reshape({1, rows, n});
    for (int pass = 0; pass < 2; ++pass) {
      const A* from = ptr<A>(block);
      if (first > 0) {
        const Tensor before = q.narrow(0, 0, first), its = dots.narrow(0, 0, rows * first).reshape({rows, first});
        cuda::gemm(stream, its, Write::overwrite, block, Transpose::no, before, Transpose::yes);
        cuda::batched_gemm(stream, left,
                           {.a = its.reshape({1, rows, first}),
                            .transpose_a = Transpose::no,
                            .b = before.reshape({1, first, n}),
                            .transpose_b = Transpose::no,
                            .alpha = -1,
                            .c = block.reshape({1, rows, n}),
                            .beta = 1});
        from = ptr<A>(left);
      }
      orthonormal_kernel<<<1, kOrthonormalThreads, 0, native(stream)>>>(ptr<A>(q), from, first, static_cast<int>(rows),
                                                                        n, instead);
      instead.least = nullptr;
    }
  }
}

template <class A>
void next_basis(Stream& stream, const Tensor& basis, const Tensor& v, const Tensor& factor, Room<A> room,
                const double* step, int dim) {
  const int64_t n = factor.size(0);
  const auto queue = native(stream);
  const Tensor product = room.first, q = room.second, former = room.take(v.elements());
  const unsigned rows = static_cast<unsigned>(n), of_v = blocks_of(stream, v.elements());
  cuda::gemm(stream, product, Write::overwrite, basis, Transpose::no, factor, Transpose::no);
  estimate_kernel<<<rows, kThreads, 0, queue>>>(room.values, room.squares, ptr<A>(basis), ptr<A>(product), n);
  order_kernel<<<static_cast<unsigned>((n + kThreads - 1) / kThreads), kThreads, 0, queue>>>(
      room.order, room.values, static_cast<int>(n), kResolved);
  unit_rows_kernel<<<rows, kThreads, 0, queue>>>(ptr<A>(q), room.least, ptr<A>(product), ptr<A>(basis), room.squares,
                                                 room.order, n);
  orthonormalize<A>(stream, q, room, {ptr<A>(basis), room.order, room.least});
  // Checks the product rather than q, in which a non-finite row has already been replaced.
  not_finite_kernel<<<kPartials, kThreads, 0, queue>>>(room.partials, ptr<A>(product), product.elements());
  keep_kernel<<<blocks_of(stream, q.elements()), kThreads, 0, queue>>>(ptr<A>(basis), ptr<A>(q), {n, n, nullptr, false},
                                                                       room.partials, step);
  stream.copy(former, v.reshape({v.elements()}));
  keep_kernel<<<of_v, kThreads, 0, queue>>>(ptr<A>(v), ptr<A>(former), {v.size(0), v.size(1), room.order, dim == 1},
                                            room.partials, step);
}

}  // namespace

void soap_moments(Stream& stream, const SoapMoments& t, const Tensor& step, const SoapMomentArgs& args) {
  const int64_t elements = t.outer.elements();
  if (elements == 0) return;
  dispatch_accumulator(t.outer.dtype(), [&]<class A>() {
    dispatch_gradient(t.gradient.dtype(), [&]<class G>() {
      moments_kernel<<<blocks_of(stream, elements), kThreads, 0, native(stream)>>>(
          ptr<A>(t.m), ptr<A>(t.outer), ptr<A>(t.scaled), ptr<G>(t.gradient), elements, ptr<double>(step), args);
    });
  });
}

void soap_direction(Stream& stream, const Tensor& direction, const Tensor& v, const Tensor& gradient, const Tensor& m,
                    const Tensor& step, const SoapDirectionArgs& args) {
  if (v.elements() == 0) return;
  dispatch_accumulator(v.dtype(), [&]<class A>() {
    direction_kernel<<<blocks_of(stream, v.elements()), kThreads, 0, native(stream)>>>(
        ptr<A>(direction), ptr<A>(v), ptr<A>(gradient), ptr<A>(m), v.elements(), ptr<double>(step), args);
  });
}

void renew_basis(Stream& stream, const Tensor& basis, const Tensor& v, const Tensor& factor, const Tensor& work,
                 const Tensor& step, const BasisArgs& args) {
  const int64_t after_first = args.update - 1;
  if (factor.elements() == 0 || after_first % args.frequency != 0) return;
  dispatch_accumulator(factor.dtype(), [&]<class A>() {
    const Room<A> room(work, factor.size(0));
    if (after_first == 0)
      first_basis<A>(stream, basis, factor, room, ptr<double>(step));
    else
      next_basis<A>(stream, basis, v, factor, room, ptr<double>(step), args.dim);
  });
}

}  // namespace witan::kernels::cuda
