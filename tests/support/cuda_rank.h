// A CPU rank and a GPU rank side by side: the same values on both, kernels run on each, results compared on the host.
// Tests that need a GPU are skipped, and say why, where there is none.
#pragma once

#include <gtest/gtest.h>

#include "support/rank.h"
#include "witan/tensor/cuda.h"

namespace witan::testing {

class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::devices() == 0) GTEST_SKIP() << cuda::why_none();
    gpu_ = std::make_unique<Stream>(Device{Device::Kind::cuda, 0}, Arena::reserve_on_gpu(0, kGpuBytes), host.pool);
  }
  Stream& gpu() { return *gpu_; }

  // The same bits on the GPU.
  Tensor to_gpu(const Tensor& tensor) {
    if (!tensor.defined()) return {};
    Tensor out = gpu().empty(tensor.shape(), tensor.dtype());
    gpu().write(out, tensor.raw());
    return out;
  }
  // The same bits on the host; waits for the GPU.
  Tensor to_host(const Tensor& tensor) {
    Tensor out = host.stream.empty(tensor.shape(), tensor.dtype());
    gpu().read(out.raw(), tensor);
    return out;
  }
  // NaN (all bits set, -1 as an integer) everywhere: an output that a kernel must write entirely.
  Tensor poisoned(const Shape& shape, DType dtype) {
    Tensor out = gpu().empty(shape, dtype);
    const std::vector<uint8_t> ones(static_cast<size_t>(out.bytes()), 0xff);
    gpu().write(out, ones.data());
    return out;
  }
  // |gpu - cpu| <= atol + rtol |cpu|, element by element; NaN never passes.
  ::testing::AssertionResult agree(const Tensor& on_gpu, const Tensor& on_cpu, double atol, double rtol) {
    return close(to_host(on_gpu), on_cpu, atol, rtol);
  }
  // What a rounding to the dtype may change, relative: for comparing sums of a few hundred terms.
  static double tolerance(DType dtype) {
    return dtype == DType::bf16 ? 1.6e-2 : dtype == DType::f32 ? 2e-5 : 1e-12;
  }

  static constexpr int64_t kGpuBytes = int64_t{6} << 30;
  Rank host;

 private:
  std::unique_ptr<Stream> gpu_;
};

}  // namespace witan::testing
