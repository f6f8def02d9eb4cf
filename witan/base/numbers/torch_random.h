// The random numbers of PyTorch's CPU generator, so that a model can begin with the very values that a PyTorch program
// of the same seed gives it: std::mt19937, and what torch.Tensor.uniform_() and normal_() make of it for float32
// (aten/src/ATen/native/cpu/DistributionTemplates.h). Unlike Philox it has a state: values come in the order of the
// calls.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <span>

namespace witan {

class TorchRandom {
 public:
  // torch.manual_seed(seed), which keeps the low 32 bits.
  explicit TorchRandom(uint64_t seed) : engine_(static_cast<std::mt19937::result_type>(seed & 0xFFFFFFFF)) {}

  // Takes the values from `first` on, a bounded number at a time. A later call replaces what an earlier one gave.
  using Sink = std::function<void(int64_t first, std::span<const float> values)>;

  // torch.empty(n).uniform_(-bound, bound)
  void uniform(int64_t n, double bound, const Sink& sink);
  // torch.empty(n).normal_();  n >= kLeastNormals: PyTorch makes fewer values by another rule
  static constexpr int64_t kLeastNormals = 16;
  void normal(int64_t n, const Sink& sink);

 private:
  void fill(std::span<float> out);  // uniform in [0, 1)

  std::mt19937 engine_;
};

}  // namespace witan
