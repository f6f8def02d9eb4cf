// A scope in which GPU kernels begin early.
#pragma once

#include <utility>

namespace witan::kernels {

// While one exists, kernels that this thread launches by launch_early() (kernels/common/cuda/early_launch.cuh) may
// begin before the previous kernel of their stream has ended, on GPUs that can (Hopper). Until that kernel has ended
// they only read weights: no kernel within the scope may write a weight of a product.
class EarlyLaunches {
 public:
  EarlyLaunches() : before_(std::exchange(on_, true)) {}
  ~EarlyLaunches() { on_ = before_; }
  EarlyLaunches(const EarlyLaunches&) = delete;
  EarlyLaunches& operator=(const EarlyLaunches&) = delete;

  static bool on() { return on_; }  // on this thread

 private:
  static inline thread_local bool on_ = false;
  bool before_;
};

}  // namespace witan::kernels
