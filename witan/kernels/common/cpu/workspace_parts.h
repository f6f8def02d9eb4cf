// Parts of a flat workspace, one after the other.
#pragma once

#include <utility>

#include "witan/tensor/tensor.h"

namespace witan::kernels::cpu {

class WorkspaceParts {
 public:
  explicit WorkspaceParts(const Tensor& work) : work_(work) {}
  Tensor take(int64_t elements) { return work_.narrow(0, std::exchange(at_, at_ + elements), elements); }
  Tensor matrix(int64_t n) { return take(n * n).reshape({n, n}); }
  // Room for so many 32-bit integers.
  int* integers(int64_t count) {
    const auto width = static_cast<int64_t>(size_of(work_.dtype()));
    return reinterpret_cast<int*>(take((count * 4 + width - 1) / width).raw());
  }

 private:
  const Tensor& work_;
  int64_t at_ = 0;
};

}  // namespace witan::kernels::cpu
