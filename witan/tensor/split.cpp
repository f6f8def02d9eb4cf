#include "witan/tensor/split.h"

#include <cassert>
#include <cstring>

#include "witan/base/split_float.h"
#include "witan/tensor/host.h"

namespace witan {
namespace {

constexpr int64_t kHalfBytes = size_of(kRemainder);

[[maybe_unused]] bool are_halves(const Tensor& upper, const Tensor& lower) {
  return upper.dtype() == DType::bf16 && lower.dtype() == kRemainder && upper.shape() == lower.shape();
}

}  // namespace

void join_to_host(std::span<float> to, const Tensor& upper, const Tensor& lower, int64_t first) {
  assert(are_halves(upper, lower));
  std::vector<uint16_t> high(to.size()), low(to.size());
  const auto bytes = static_cast<int64_t>(to.size()) * kHalfBytes;
  copy_to_host(high.data(), upper, first * kHalfBytes, bytes);
  copy_to_host(low.data(), lower, first * kHalfBytes, bytes);
  for (size_t i = 0; i < to.size(); ++i) to[i] = join({high[i], low[i]});
}

void split_from_host(const Tensor& upper, const Tensor& lower, int64_t first, const std::byte* from, int64_t elements) {
  assert(are_halves(upper, lower));
  std::vector<float> joined(static_cast<size_t>(std::min(elements, kSplitPiece)));
  std::vector<uint16_t> high(joined.size()), low(joined.size());
  for (int64_t at = 0; at < elements; at += kSplitPiece) {
    const int64_t here = std::min(kSplitPiece, elements - at);
    std::memcpy(joined.data(), from + at * static_cast<int64_t>(sizeof(float)),
                static_cast<size_t>(here) * sizeof(float));
    for (size_t i = 0; i < static_cast<size_t>(here); ++i) {
      const SplitFloat halves = split(joined[i]);
      high[i] = halves.upper;
      low[i] = halves.lower;
    }
    copy_from_host(upper, (first + at) * kHalfBytes, high.data(), here * kHalfBytes);
    copy_from_host(lower, (first + at) * kHalfBytes, low.data(), here * kHalfBytes);
  }
}

}  // namespace witan
