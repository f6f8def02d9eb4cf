// Frequencies of rotary positions as an argument of a kernel: they are configuration, formed on the host for all
// devices.
#pragma once

#include <algorithm>
#include <vector>

#include "witan/kernels/attention/rope.h"

namespace witan::kernels::cuda {

// Of up to kMost pairs from `first` on, each times `unit`.
struct Frequencies {
  static constexpr int kMost = 256;
  double at[kMost] = {};

  explicit Frequencies(const std::vector<double>& all, int first, double unit = 1) {
    const int count = std::min(static_cast<int>(all.size()) - first, kMost);
    for (int i = 0; i < count; ++i) at[i] = all[static_cast<size_t>(first + i)] * unit;
  }
};

}  // namespace witan::kernels::cuda
