// Sizes of a tensor's dims, outermost first. Dims are int64_t; there are at most kMostDims of them.
#pragma once

#include <array>
#include <cassert>
#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <utility>

#include "witan/base/error.h"

namespace witan {

class Shape {
 public:
  static constexpr int kMostDims = 5;

  Shape() = default;
  Shape(std::initializer_list<int64_t> sizes) {
    require<ShapeError>(sizes.size() <= kMostDims, "a tensor has at most ", kMostDims, " dims, got ", sizes.size());
    for (const int64_t size : sizes) append(size);
  }

  int dims() const { return dims_; }
  int64_t operator[](int dim) const {
    assert(dim >= 0 && dim < dims_);
    return sizes_[static_cast<size_t>(dim)];
  }
  int64_t last() const { return dims_ == 0 ? 1 : (*this)[dims_ - 1]; }
  int64_t elements() const {
    int64_t product = 1;
    for (int i = 0; i < dims_; ++i) product *= (*this)[i];
    return product;
  }
  // All dims but the last multiplied together, and the last dim: the view of row-wise kernels.
  std::pair<int64_t, int64_t> as_rows() const {
    const int64_t columns = last();
    return {columns == 0 ? leading() : elements() / columns, columns};
  }

  Shape with(int dim, int64_t size) const {
    Shape other = *this;
    assert(dim >= 0 && dim < dims_);
    other.sizes_[static_cast<size_t>(dim)] = size;
    return other;
  }
  void append(int64_t size) {
    require<ShapeError>(size >= 0, "a dim cannot be negative: ", size);
    require<ShapeError>(dims_ < kMostDims, "a tensor has at most ", kMostDims, " dims");
    sizes_[static_cast<size_t>(dims_++)] = size;
  }

  bool operator==(const Shape& other) const {
    if (dims_ != other.dims_) return false;
    for (int i = 0; i < dims_; ++i)
      if ((*this)[i] != other[i]) return false;
    return true;
  }

 private:
  int64_t leading() const {
    int64_t product = 1;
    for (int i = 0; i + 1 < dims_; ++i) product *= (*this)[i];
    return product;
  }

  std::array<int64_t, kMostDims> sizes_{};
  int dims_ = 0;
};

inline std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  out << '[';
  for (int i = 0; i < shape.dims(); ++i) out << (i ? ", " : "") << shape[i];
  return out << ']';
}

}  // namespace witan
