// A CPU rank and a GPU rank side by side: the same values on both, kernels run on each, results compared on the host.
// Tests that need a GPU are skipped with a reason if there is none.
//
// compute-sanitizer sees an arena as one allocation, so the fixture watches the space between its tensors: memory is
// NaN until a test writes it, and a write next to a tensor fails the test.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <vector>

#include "support/rank.h"
#include "witan/tensor/cuda.h"
#include "witan/tensor/cuda/stream.h"

namespace witan::testing {

class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::devices() == 0) GTEST_SKIP() << cuda::why_none();
    // initcheck needs uninitialised memory, and little of it.
    const bool raw = std::getenv("WITAN_TEST_RAW_MEMORY") != nullptr;
    const int64_t bytes = raw ? kGpuBytes / 8 : kGpuBytes;
    gpu_ = std::make_unique<Stream>(Device{Device::Kind::cuda, 0}, Arena::reserve_on_gpu(0, bytes), host.pool);
    if (!raw) fill_with_ones();
  }
  void TearDown() override {
    if (gpu_) check_guards();
  }
  Stream& gpu() { return *gpu_; }

  // The GPU's copy has the same bits.
  Tensor to_gpu(const Tensor& tensor) {
    if (!tensor.defined()) return {};
    Tensor out = guarded(tensor.shape(), tensor.dtype());
    gpu().write(out, tensor.raw());
    return out;
  }
  // The host's copy has the same bits; waits for the GPU.
  Tensor to_host(const Tensor& tensor) {
    Tensor out = host.stream.empty(tensor.shape(), tensor.dtype());
    gpu().read(out.raw(), tensor);
    return out;
  }
  // NaN everywhere (all bits set; -1 as an integer): an output that a kernel must overwrite completely.
  Tensor poisoned(const Shape& shape, DType dtype) {
    Tensor out = guarded(shape, dtype);
    const std::vector<uint8_t> ones(static_cast<size_t>(out.bytes()), 0xff);
    gpu().write(out, ones.data());
    return out;
  }
  // Workspace that a kernel must write before it reads.
  void poison(std::initializer_list<const Tensor*> all) {
    for (const Tensor* of : all) {
      if (!of->defined()) continue;
      const std::vector<uint8_t> ones(static_cast<size_t>(of->bytes()), 0xff);
      gpu().write(*of, ones.data());
    }
  }
  // The same numbers in float64 on the CPU.
  Tensor in_float64(const Tensor& x) {
    const Tensor out = host.stream.empty(x.shape(), DType::f64);
    std::ranges::copy(values(x), out.data<double>());
    return out;
  }
  // |found - expected| / |expected|
  static double distance(const Tensor& found, const Tensor& expected) {
    const std::vector<double> a = values(found), b = values(expected);
    double squares = 0, of_expected = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      squares += (a[i] - b[i]) * (a[i] - b[i]);
      of_expected += b[i] * b[i];
    }
    return std::sqrt(squares / of_expected);
  }
  // |gpu - cpu| <= atol + rtol |cpu|, element by element; NaN never passes.
  ::testing::AssertionResult agree(const Tensor& on_gpu, const Tensor& on_cpu, double atol, double rtol) {
    return close(to_host(on_gpu), on_cpu, atol, rtol);
  }
  // Relative error of one rounding to the dtype, for comparing sums of a few hundred terms.
  static double tolerance(DType dtype) {
    return dtype == DType::bf16 ? 1.6e-2 : dtype == DType::f16 ? 2e-3 : dtype == DType::f32 ? 2e-5 : 1e-12;
  }

  // Whether kernels accept parameter gradients in another dtype than the values.
  static bool has_gradients(DType value, DType gradient) {
    return value == DType::f16 ? size_of(gradient) <= 4 && gradient != DType::bf16 : gradient != DType::f16;
  }

  static constexpr int64_t kGpuBytes = int64_t{8} << 30;
  Rank host;

 private:
  static constexpr int64_t kGuard = 512;  // bytes on either side; keeps the arena's alignment

  // Uninitialised memory between two guard strips of ones, which are checked before the memory is released.
  Tensor guarded(const Shape& shape, DType dtype) {
    const int64_t strip = kGuard / size_of(dtype), elements = shape.elements();
    const Tensor whole = gpu().empty({strip + elements + strip}, dtype);
    const Tensor strips[] = {whole.narrow(0, 0, strip), whole.narrow(0, strip + elements, strip)};
    const std::vector<uint8_t> ones(kGuard, 0xff);
    for (const Tensor& one : strips) {
      gpu().write(one, ones.data());
      guards_.push_back(one);
    }
    guarded_bytes_ += whole.bytes();
    if (guarded_bytes_ > kGpuBytes / 32) check_guards();
    return whole.narrow(0, strip, elements).reshape(shape);
  }
  void check_guards() {
    std::vector<uint8_t> found(kGuard);
    for (size_t i = 0; i < guards_.size(); ++i) {
      gpu().read(found.data(), guards_[i]);
      ASSERT_TRUE(std::ranges::all_of(found, [](uint8_t byte) { return byte == 0xff; }))
          << "a kernel wrote " << (i % 2 ? "after" : "before") << " tensor " << i / 2 << " of this test";
    }
    guards_.clear();
    guarded_bytes_ = 0;
  }
  void fill_with_ones() {
    const auto fill = [&](std::byte* begin, int64_t bytes) {
      cuda::check(cudaMemsetAsync(begin, 0xff, static_cast<size_t>(bytes), cuda::native(gpu())), "filling memory");
    };
    const Tensor rest = gpu().empty({(kGpuBytes - gpu().arena().live()) / 4}, DType::i32);
    fill(rest.raw(), rest.bytes());
    fill(gpu().scratch(Stream::kScratchBytes), Stream::kScratchBytes);
  }

  std::unique_ptr<Stream> gpu_;
  std::vector<Tensor> guards_;  // before and after each tensor
  int64_t guarded_bytes_ = 0;
};

}  // namespace witan::testing
