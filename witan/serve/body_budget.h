// The memory that the bodies of all requests may take together, from the first byte received until they are handled.
#pragma once

#include <malloc.h>

#include <atomic>
#include <cstdint>

namespace witan::serve {

// Thread-safe.
class BodyBudget {
 public:
  explicit BodyBudget(int64_t most) : most_(most) {}

  int64_t used() const { return used_; }

  // One body's share of the budget, returned on destruction.
  class Share {
   public:
    explicit Share(BodyBudget& budget) : budget_(budget) {}
    ~Share() { budget_.give_back(bytes_); }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

    // Returns false if the budget does not allow it.
    bool grow_to(int64_t bytes) {
      if (bytes <= bytes_) return true;
      if (!budget_.take(bytes - bytes_)) return false;
      bytes_ = bytes;
      return true;
    }

   private:
    BodyBudget& budget_;
    int64_t bytes_ = 0;
  };

 private:
  // Below this peak, memory that the allocator keeps does not matter.
  static constexpr int64_t kWorthTrimming = 16 << 20;

  bool take(int64_t bytes) {
    if ((used_ += bytes) > most_) {
      used_ -= bytes;
      return false;
    }
    int64_t peak = peak_;
    while (peak < used_ && !peak_.compare_exchange_weak(peak, used_)) {
    }
    return true;
  }
  // Otherwise the allocator would keep the pages of simultaneous bodies until the program ends.
  void give_back(int64_t bytes) {
    if ((used_ -= bytes) > 0 || peak_ < kWorthTrimming) return;
    peak_ = 0;
    ::malloc_trim(0);
  }

  const int64_t most_;
  std::atomic<int64_t> used_ = 0, peak_ = 0;
};

}  // namespace witan::serve
