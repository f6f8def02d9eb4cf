// A local array: shape, strides and dtype over shared storage in an arena. It has no gradients and no ranks. Copies
// share the storage, which is freed with its last tensor; constness is shallow, as with a span.
#pragma once

#include <array>
#include <cassert>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "witan/tensor/arena.h"
#include "witan/tensor/device.h"
#include "witan/tensor/dtype.h"
#include "witan/tensor/shape.h"

namespace witan {

class Tensor {
 public:
  Tensor() = default;
  // Uninitialised, contiguous. Streams call this; most code asks its stream instead.
  Tensor(Device device, std::shared_ptr<Arena> arena, const Shape& shape, DType dtype, MemoryTag tag);

  bool defined() const { return storage_ != nullptr; }
  const Shape& shape() const { return shape_; }
  int64_t size(int dim) const { return shape_[dim]; }
  int64_t stride(int dim) const { return strides_[static_cast<size_t>(dim)]; }  // in elements
  int64_t elements() const { return shape_.elements(); }
  int64_t bytes() const { return elements() * size_of(dtype_); }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  bool is_meta() const { return device_.kind == Device::Kind::meta; }
  bool contiguous() const;
  bool unique() const;  // no other tensor shares the storage

  // The first element, as an address of its device; null on the meta device. T must match the dtype.
  template <class T>
  T* data() const {
    assert(defined() && dtype_of<T>() == dtype_);
    return reinterpret_cast<T*>(raw());
  }
  std::byte* raw() const;
  // All elements of a contiguous tensor on the CPU.
  template <class T>
  std::span<T> span() const {
    assert(contiguous());
    return {data<T>(), static_cast<size_t>(elements())};
  }
  template <class T>
  std::vector<T> to_vector() const {
    const auto all = span<T>();
    return {all.begin(), all.end()};
  }

  // Views of the same storage. reshape needs a contiguous tensor of equal size; throws ShapeError.
  Tensor reshape(const Shape& shape) const;
  Tensor narrow(int dim, int64_t begin, int64_t size) const;
  Tensor select(int dim, int64_t index) const;  // narrow() to one index, without the dim
  Tensor transpose(int a, int b) const;

 private:
  friend Tensor joined_rows(const std::vector<Tensor>& parts);
  struct Storage;
  std::shared_ptr<Storage> storage_;
  int64_t offset_ = 0;  // elements from the storage's start
  Shape shape_;
  std::array<int64_t, Shape::kMostDims> strides_{};
  DType dtype_ = DType::f32;
  Device device_;
};

// Tensors that are equal except in dim 0 and contiguous in one storage, as one tensor; undefined if they are not.
Tensor joined_rows(const std::vector<Tensor>& parts);

// How a kernel writes its output: most gradients are overwritten by their first writer and accumulated into afterwards,
// so that nothing must be zero-filled.
enum class Write : bool { overwrite, accumulate };

}  // namespace witan
