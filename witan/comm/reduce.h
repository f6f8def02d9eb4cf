// Reductions over the buffers of several ranks, on the CPU: y_k[i] = x_0[i] + x_1[i] + …, for every k, in a binary
// tree: the first largest power of two of them, plus the rest. So the sum over n ranks that each summed 2^m values in
// such a tree is the tree over all values, whatever n is. Sums in float32 for types of 16 bits and in the type itself
// otherwise; integers wrap.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "witan/base/threads/threads.h"
#include "witan/comm/group.h"
#include "witan/tensor/dtype.h"

namespace witan::reduce_detail {

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, bf16> || std::is_same_v<T, f16>;

template <class T>
struct SumOf {
  using type = std::conditional_t<kIsHalf<T>, float, T>;
};
template <>
struct SumOf<int32_t> {
  using type = uint32_t;
};
template <>
struct SumOf<int64_t> {
  using type = uint64_t;
};

struct Add {
  template <class T>
  using Wide = typename SumOf<T>::type;
  template <class A>
  static A combine(A a, A b) {
    return a + b;
  }
};
struct Largest {
  template <class T>
  using Wide = std::conditional_t<kIsHalf<T>, float, T>;
  template <class A>
  static A combine(A a, A b) {
    return a > b || a != a ? a : b;
  }  // a NaN on either side wins
};

template <class T, class A>
void store(T& to, A value) {
  if constexpr (kIsHalf<T>) {
    to.bits = T(value).bits;  // assigning the struct itself keeps g++ from vectorising
  } else {
    to = static_cast<T>(value);
  }
}

constexpr int64_t kBlock = 1024;  // elements: a block of every level of the tree stays in the L1 or L2 cache

// sums[0 … count-1] = the tree over count elements of `inputs` from `start` on; what lies after is scratch: a block
// for each level.
template <class T, class Op, class A>
void reduce_block(std::span<const T* const> inputs, int64_t start, int64_t count, A* sums) {
  if (inputs.size() == 1) {
    const T* only = inputs[0] + start;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) sums[i] = static_cast<A>(only[i]);
    return;
  }
  const size_t half = std::bit_floor(inputs.size() - 1);
  reduce_block<T, Op>(inputs.first(half), start, count, sums);
  if (inputs.size() - half == 1) {
    const T* last = inputs.back() + start;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) sums[i] = Op::combine(sums[i], static_cast<A>(last[i]));
    return;
  }
  A* rest = sums + kBlock;
  reduce_block<T, Op>(inputs.subspan(half), start, count, rest);
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) sums[i] = Op::combine(sums[i], rest[i]);
}

// Elements [begin, end) of every input are combined and written to every output; an output may be an input. Memory is
// read once per input and written once per output.
template <class T, class Op>
void reduce_range(const std::vector<const T*>& inputs, const std::vector<T*>& outputs, int64_t begin, int64_t end) {
  using A = typename Op::template Wide<T>;
  const auto levels = static_cast<size_t>(std::bit_width(inputs.size()));
  std::vector<A> sum(levels * kBlock);
  for (int64_t start = begin; start < end; start += kBlock) {
    const int64_t count = std::min(kBlock, end - start);
    reduce_block<T, Op>(std::span<const T* const>(inputs), start, count, sum.data());
    for (T* output : outputs) {
      T* to = output + start;
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) store(to[i], sum[i]);
    }
  }
}

// Reduces all elements on the threads of a pool.
template <class T>
void reduce_elements(ThreadPool& pool, Reduce reduce, const std::vector<const T*>& inputs,
                     const std::vector<T*>& outputs, int64_t elements) {
  constexpr int64_t kGrain = 1 << 15;
  pool.for_ranges(elements, kGrain, [&](int64_t begin, int64_t end) {
    if (reduce == Reduce::sum) {
      reduce_range<T, Add>(inputs, outputs, begin, end);
    } else {
      reduce_range<T, Largest>(inputs, outputs, begin, end);
    }
  });
}

template <class Body>
void dispatch_any(DType dtype, const Body& body) {
  if (dtype == DType::i32) return body.template operator()<int32_t>();
  if (dtype == DType::i64) return body.template operator()<int64_t>();
  dispatch_floating(dtype, body);
}

}  // namespace witan::reduce_detail
