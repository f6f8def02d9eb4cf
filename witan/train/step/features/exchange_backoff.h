// When steps exchange experts' rows in parts of a bounded size (moe/expert_pools.h). One that overflows is made twice,
// so that after it some steps exchange rows as they come: none after the first, then twice as many after each further
// one, and half as many after each that had room. All ranks see the same steps, and so decide alike.
#pragma once

#include <algorithm>
#include <cstdint>

namespace witan {

class ExchangeBackoff {
 public:
  static constexpr int64_t kMostWaits = 256;

  // Whether the next step is not to try parts.
  bool waits() const { return left_ > 0; }

  // A step was made in parts.
  void tried(bool overflowed) {
    if (overflowed) left_ = waits_;
    waits_ = overflowed ? std::clamp<int64_t>(2 * waits_, 1, kMostWaits) : waits_ / 2;
  }
  // A step was made without having tried.
  void waited() { left_ = std::max<int64_t>(left_ - 1, 0); }

 private:
  int64_t waits_ = 0;  // steps after the next overflow
  int64_t left_ = 0;   // of them
};

}  // namespace witan
