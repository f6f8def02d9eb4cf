// A rank for tests: an arena, a pool and a CPU (or meta) stream, and tensors made from values.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string_view>
#include <vector>

#include "witan/base/numbers/rng.h"
#include "witan/base/threads/threads.h"
#include "witan/tensor/tensor.h"

namespace witan::testing {

struct Rank {
  explicit Rank(int threads = 2, int64_t arena_bytes = int64_t{1} << 30)
      : pool(threads), stream({Device::Kind::cpu}, Arena::reserve(arena_bytes), pool) {}

  template <class T>
  Tensor tensor(const Shape& shape, const std::vector<T>& values) {
    Tensor out = stream.empty(shape, dtype_of<T>());
    EXPECT_EQ(static_cast<int64_t>(values.size()), shape.elements());
    std::copy(values.begin(), values.end(), out.data<T>());
    return out;
  }
  // Standard normal values times `scale`, the same for every dtype and order of calls.
  Tensor normal(const Shape& shape, DType dtype, std::string_view name, double scale = 1) {
    Tensor out = stream.empty(shape, dtype);
    const Philox rng(7, Philox::stream_of(name));
    dispatch_floating(dtype, [&]<class T>() {
      for (int64_t i = 0; i < out.elements(); ++i) out.data<T>()[i] = T(rng.normal(static_cast<uint64_t>(i)) * scale);
    });
    return out;
  }
  // NaN everywhere: an output that a kernel must overwrite completely.
  Tensor poisoned(const Shape& shape, DType dtype) {
    Tensor out = stream.empty(shape, dtype);
    dispatch_floating(dtype, [&]<class T>() { std::ranges::fill(out.span<T>(), T(std::nanf(""))); });
    return out;
  }

  ThreadPool pool;
  Stream stream;
};

// The elements of a floating tensor as float64.
inline std::vector<double> values(const Tensor& tensor) {
  std::vector<double> out;
  dispatch_floating(tensor.dtype(), [&]<class T>() {
    for (const T value : tensor.span<T>()) out.push_back(static_cast<double>(value));
  });
  return out;
}

// |a - b| <= atol + rtol |b| for every element; NaN never passes.
inline ::testing::AssertionResult close(const std::vector<double>& a, const std::vector<double>& b, double atol,
                                        double rtol) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " elements against " << b.size();
  for (size_t i = 0; i < a.size(); ++i)
    if (!(std::abs(a[i] - b[i]) <= atol + rtol * std::abs(b[i])))
      return ::testing::AssertionFailure() << "element " << i << ": " << a[i] << " against " << b[i];
  return ::testing::AssertionSuccess();
}
inline ::testing::AssertionResult close(const Tensor& a, const Tensor& b, double atol, double rtol) {
  return close(values(a), values(b), atol, rtol);
}

}  // namespace witan::testing
