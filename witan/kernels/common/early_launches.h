// A scope in which GPU kernels begin early.
#pragma once

namespace witan::kernels {

// While one exists, kernels that this thread launches by launch_early() (kernels/common/cuda/early_launch.cuh) may
// begin before the previous kernel of their stream has ended, on GPUs that can (Hopper). Until that kernel has ended
// they only read weights: no kernel within the scope may write a weight of a product.
class EarlyLaunches {
 public:
  EarlyLaunches();
  ~EarlyLaunches();
  EarlyLaunches(const EarlyLaunches&) = delete;
  EarlyLaunches& operator=(const EarlyLaunches&) = delete;

  static bool on();  // on this thread

 private:
  bool before_;
};

}  // namespace witan::kernels
