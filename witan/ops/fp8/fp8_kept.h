// Weights in e4m3 that are quantised once for all micro-batches of a step, instead of at every use.
#pragma once

#include <cassert>
#include <memory>
#include <utility>

#include "witan/kernels/fp8/fp8.h"

namespace witan::ops {

// The rounds of a model. While a round lasts, weights do not change; between rounds, also in an evaluation, they may,
// and no copies are kept.
class Fp8Rounds {
 public:
  // A round lasts as long as this object. Null rounds: it does nothing.
  class [[nodiscard]] Round {
   public:
    explicit Round(Fp8Rounds* rounds) : rounds_(rounds) {
      if (rounds_ == nullptr) return;
      assert(!rounds_->open_);
      rounds_->open_ = true;
      ++rounds_->number_;
    }
    ~Round() {
      if (rounds_ != nullptr) rounds_->open_ = false;
    }
    Round(const Round&) = delete;
    Round& operator=(const Round&) = delete;

   private:
    Fp8Rounds* rounds_;
  };

  bool open() const { return open_; }
  int64_t number() const { return number_; }

 private:
  bool open_ = false;
  int64_t number_ = 0;
};

// The 8-bit copies of one weight, plain and transposed, in their own memory.
class Fp8KeptWeight {
 public:
  // w [E, N, K], or [N, K]
  Fp8KeptWeight(Stream& stream, const Shape& w, std::shared_ptr<const Fp8Rounds> rounds) : rounds_(std::move(rounds)) {
    const int64_t E = w.dims() == 3 ? w[0] : 1, N = w[w.dims() - 2], K = w.last();
    both_ = {stream.empty({E, N, K}, DType::f8, MemoryTag::weights),
             stream.empty({E, K, N}, DType::f8, MemoryTag::weights),
             stream.empty({E, kernels::fp8_blocks(N), kernels::fp8_blocks(K)}, DType::f32, MemoryTag::weights)};
  }

  bool keeps() const { return rounds_->open(); }
  // The copies of this round; the first call of a round calls quantise(both copies).
  template <class Quantise>
  const kernels::Fp8Weights& value(const Quantise& quantise) {
    assert(keeps());
    if (std::exchange(quantised_in_, rounds_->number()) != rounds_->number()) quantise(both_);
    return both_;
  }

 private:
  std::shared_ptr<const Fp8Rounds> rounds_;
  kernels::Fp8Weights both_;
  int64_t quantised_in_ = 0;  // the round; the first is 1
};

}  // namespace witan::ops
