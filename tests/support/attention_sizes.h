// Sizes of attention that tests of its kernels share, on the CPU and on GPUs, and what the kernels write.
#pragma once

#include <cstdint>
#include <ostream>
#include <vector>

#include "witan/tensor/tensor.h"

namespace witan::testing {

struct AttentionSize {
  int64_t B, S, H, G, hd;
  int64_t hd_v = hd;
  int64_t window = 0;
  Shape queries() const { return {B, S, H, hd}; }
  Shape keys() const { return {B, S, G, hd}; }
  Shape values() const { return {B, S, G, hd_v}; }
  Shape results() const { return {B, S, H, hd_v}; }
  Shape lse() const { return {B, H, S}; }
  AttentionSize with_window(int64_t positions) const {
    AttentionSize other = *this;
    other.window = positions;
    return other;
  }
};

inline std::ostream& operator<<(std::ostream& out, const AttentionSize& s) {
  return out << "B=" << s.B << " S=" << s.S << " H=" << s.H << " G=" << s.G << " hd=" << s.hd << " hd_v=" << s.hd_v
             << " window=" << s.window;
}

struct AttentionResults {
  Tensor y, lse, dq, dk, dv;
  std::vector<Tensor> all() const { return {y, lse, dq, dk, dv}; }
};

}  // namespace witan::testing
