#include "witan/tensor/host.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <vector>

#include "witan/base/numbers/half.h"
#include "witan/tensor/cuda.h"

namespace witan {

void copy_from_host(const Tensor& to, int64_t offset, const void* from, int64_t bytes) {
  assert(to.contiguous() && offset + bytes <= to.bytes());
  if (to.is_meta() || bytes == 0) return;
  if (to.device().kind == Device::Kind::cuda)
    cuda::copy_in(to.device().index, to.raw() + offset, from, bytes);
  else
    std::memcpy(to.raw() + offset, from, static_cast<size_t>(bytes));
}

void copy_to_host(void* to, const Tensor& from, int64_t offset, int64_t bytes) {
  assert(from.contiguous() && offset + bytes <= from.bytes());
  if (from.is_meta() || bytes == 0) return;
  if (from.device().kind == Device::Kind::cuda)
    cuda::copy_out(from.device().index, to, from.raw() + offset, bytes);
  else
    std::memcpy(to, from.raw() + offset, static_cast<size_t>(bytes));
}

namespace {

// A chunk of a split tensor: small for a tensor in host memory, but large enough for a device to make a copy worth its
// launch. Upper and Lower are the element types of the two tensors on the host.
template <class Upper, class Lower>
class Pieces {
 public:
  Pieces(const Tensor& upper, const Tensor& lower, int64_t elements)
      : upper_(upper),
        lower_(lower),
        most_(std::min(elements, upper.device().kind == Device::Kind::cpu ? kOfHost : kOfDevice)),
        whole_(static_cast<size_t>(most_)),
        high_(whole_.size()),
        low_(whole_.size()) {}

  // Joins the elements [at, at + count); count <= most().
  const std::byte* join(int64_t at, int64_t count) {
    copy_to_host(high_.data(), upper_, at * kUpper, count * kUpper);
    copy_to_host(low_.data(), lower_, at * kLower, count * kLower);
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) whole_[i] = joined(high_[i], low_[i]);
    return reinterpret_cast<const std::byte*>(whole_.data());
  }
  void split(int64_t at, int64_t count, const std::byte* from) {
    std::memcpy(whole_.data(), from, static_cast<size_t>(count) * sizeof(float));
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) cut(whole_[i], high_[i], low_[i]);
    copy_from_host(upper_, at * kUpper, high_.data(), count * kUpper);
    copy_from_host(lower_, at * kLower, low_.data(), count * kLower);
  }
  int64_t most() const { return most_; }

 private:
  static constexpr int64_t kOfHost = int64_t{1} << 16, kOfDevice = int64_t{1} << 20;
  static constexpr int64_t kUpper = sizeof(Upper), kLower = sizeof(Lower);

  static float joined(uint16_t upper, uint16_t lower) { return witan::join(SplitFloat{upper, lower}); }
  static float joined(f16 narrow, float rest) { return witan::join(narrow, rest); }
  static void cut(float whole, uint16_t& upper, uint16_t& lower) {
    const SplitFloat halves = witan::split(whole);
    upper = halves.upper;
    lower = halves.lower;
  }
  static void cut(float whole, f16& narrow, float& rest) {
    narrow = f16(whole);
    rest = rest_of(whole, narrow);
  }

  const Tensor &upper_, &lower_;
  int64_t most_;
  std::vector<float> whole_;
  std::vector<Upper> high_;
  std::vector<Lower> low_;
};

// Calls body() with Pieces of at most `elements` elements.
template <class Body>
void with_pieces(const Tensor& upper, const Tensor& lower, int64_t elements, const Body& body) {
  assert(is_split(upper.dtype()) && lower.dtype() == remainder_dtype(upper.dtype()) && upper.shape() == lower.shape());
  if (upper.dtype() == DType::f16) return body(Pieces<f16, float>(upper, lower, elements));
  body(Pieces<uint16_t, uint16_t>(upper, lower, elements));
}

constexpr int64_t kWhole = size_of(DType::f32);

}  // namespace

void for_joined_bytes(const Tensor& upper, const Tensor& lower,
                      const std::function<void(const std::byte* bytes, int64_t count)>& body) {
  with_pieces(upper, lower, upper.elements(), [&](auto pieces) {
    for (int64_t at = 0; at < upper.elements(); at += pieces.most()) {
      const int64_t count = std::min(pieces.most(), upper.elements() - at);
      body(pieces.join(at, count), count * kWhole);
    }
  });
}

void split_from_host(const Tensor& upper, const Tensor& lower, int64_t first, const std::byte* from, int64_t elements) {
  with_pieces(upper, lower, elements, [&](auto pieces) {
    for (int64_t at = 0; at < elements; at += pieces.most())
      pieces.split(first + at, std::min(pieces.most(), elements - at), from + at * kWhole);
  });
}

}  // namespace witan
