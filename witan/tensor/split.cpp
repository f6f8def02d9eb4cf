#include "witan/tensor/split.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <vector>

#include "witan/base/split_float.h"
#include "witan/tensor/host.h"

namespace witan {
namespace {

// What moves at once: little of the host's memory, but of a device enough for a copy to be worth its start.
class Pieces {
 public:
  Pieces(const Tensor& upper, const Tensor& lower, int64_t elements)
      : upper_(upper),
        lower_(lower),
        most_(std::min(elements, upper.device().kind == Device::Kind::cpu ? kOfHost : kOfDevice)),
        whole_(static_cast<size_t>(most_)),
        high_(whole_.size()),
        low_(whole_.size()) {
    assert(upper.dtype() == DType::bf16 && lower.dtype() == kRemainder && upper.shape() == lower.shape());
  }

  // The elements [at, at + count) of the tensor; count <= most().
  const std::byte* join(int64_t at, int64_t count) {
    copy_to_host(high_.data(), upper_, at * kHalf, count * kHalf);
    copy_to_host(low_.data(), lower_, at * kHalf, count * kHalf);
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) whole_[i] = witan::join({high_[i], low_[i]});
    return reinterpret_cast<const std::byte*>(whole_.data());
  }
  void split(int64_t at, int64_t count, const std::byte* from) {
    std::memcpy(whole_.data(), from, static_cast<size_t>(count) * sizeof(float));
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      const SplitFloat halves = witan::split(whole_[i]);
      high_[i] = halves.upper;
      low_[i] = halves.lower;
    }
    copy_from_host(upper_, at * kHalf, high_.data(), count * kHalf);
    copy_from_host(lower_, at * kHalf, low_.data(), count * kHalf);
  }
  int64_t most() const { return most_; }

 private:
  static constexpr int64_t kOfHost = int64_t{1} << 16, kOfDevice = int64_t{1} << 20, kHalf = size_of(kRemainder);

  const Tensor &upper_, &lower_;
  int64_t most_;
  std::vector<float> whole_;
  std::vector<uint16_t> high_, low_;
};

constexpr int64_t kWhole = size_of(DType::f32);

}  // namespace

void for_joined_bytes(const Tensor& upper, const Tensor& lower,
                      const std::function<void(const std::byte* bytes, int64_t count)>& body) {
  Pieces pieces(upper, lower, upper.elements());
  for (int64_t at = 0; at < upper.elements(); at += pieces.most()) {
    const int64_t count = std::min(pieces.most(), upper.elements() - at);
    body(pieces.join(at, count), count * kWhole);
  }
}

void split_from_host(const Tensor& upper, const Tensor& lower, int64_t first, const std::byte* from, int64_t elements) {
  Pieces pieces(upper, lower, elements);
  for (int64_t at = 0; at < elements; at += pieces.most())
    pieces.split(first + at, std::min(pieces.most(), elements - at), from + at * kWhole);
}

}  // namespace witan
