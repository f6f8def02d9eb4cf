#include "witan/tensor/tensor.h"

#include <algorithm>

namespace witan {

struct Tensor::Storage {
  Storage(std::shared_ptr<Arena> from, const Shape& shape, DType dtype, MemoryTag tag) : arena(std::move(from)) {
    const int64_t bytes = shape.elements() * size_of(dtype);
    record.block = {arena->allocate(bytes, tag), bytes, tag, dtype, shape, {}};
    arena->note(record);
  }
  ~Storage() {
    arena->forget(record);
    arena->free(record.block.offset, record.block.bytes, record.block.tag);
  }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  std::shared_ptr<Arena> arena;
  Arena::Record record;
};

Tensor::Tensor(Device device, std::shared_ptr<Arena> arena, const Shape& shape, DType dtype, MemoryTag tag)
    : storage_(std::make_shared<Storage>(std::move(arena), shape, dtype, tag)),
      shape_(shape),
      dtype_(dtype),
      device_(device) {
  int64_t stride = 1;
  for (int i = shape.dims() - 1; i >= 0; --i) {
    strides_[static_cast<size_t>(i)] = stride;
    stride *= shape[i];
  }
}

bool Tensor::contiguous() const {
  int64_t expected = 1;
  for (int i = shape_.dims() - 1; i >= 0; --i) {
    if (shape_[i] != 1 && stride(i) != expected) return elements() == 0;
    expected *= shape_[i];
  }
  return true;
}

bool Tensor::unique() const {
  return storage_.use_count() == 1;
}

std::byte* Tensor::raw() const {
  assert(defined());
  std::byte* start = storage_->arena->address(storage_->record.block.offset);
  return start ? start + offset_ * size_of(dtype_) : nullptr;
}

Tensor Tensor::reshape(const Shape& shape) const {
  require<ShapeError>(contiguous() && shape.elements() == elements(), "cannot view ", shape_, " as ", shape,
                      contiguous() ? "" : ": it is not contiguous");
  Tensor view = *this;
  view.shape_ = shape;
  int64_t stride = 1;
  for (int i = shape.dims() - 1; i >= 0; --i) {
    view.strides_[static_cast<size_t>(i)] = stride;
    stride *= shape[i];
  }
  return view;
}

Tensor Tensor::narrow(int dim, int64_t begin, int64_t size) const {
  require<ShapeError>(dim >= 0 && dim < shape_.dims() && begin >= 0 && size >= 0 && begin + size <= shape_[dim],
                      "cannot take [", begin, ", ", begin + size, ") of dim ", dim, " of ", shape_);
  Tensor view = *this;
  view.shape_ = shape_.with(dim, size);
  view.offset_ += begin * stride(dim);
  return view;
}

Tensor Tensor::select(int dim, int64_t index) const {
  Tensor view = narrow(dim, index, 1);
  view.shape_ = {};
  for (int i = 0; i < shape_.dims(); ++i) {
    if (i == dim) continue;
    view.strides_[static_cast<size_t>(view.shape_.dims())] = stride(i);
    view.shape_.append(shape_[i]);
  }
  return view;
}

Tensor Tensor::transpose(int a, int b) const {
  require<ShapeError>(a >= 0 && b >= 0 && a < shape_.dims() && b < shape_.dims(), "no dims ", a, " and ", b, " in ",
                      shape_);
  Tensor view = *this;
  view.shape_ = shape_.with(a, shape_[b]).with(b, shape_[a]);
  std::swap(view.strides_[static_cast<size_t>(a)], view.strides_[static_cast<size_t>(b)]);
  return view;
}

Tensor joined_rows(const std::vector<Tensor>& parts) {
  Tensor all = parts.front();
  if (!all.contiguous()) return {};
  for (size_t i = 1; i < parts.size(); ++i) {
    const Tensor& part = parts[i];
    const bool follows = part.storage_ == all.storage_ && part.dtype_ == all.dtype_ && part.contiguous() &&
                         part.offset_ == all.offset_ + all.elements() &&
                         part.shape_.with(0, 0) == all.shape_.with(0, 0);
    if (!follows) return {};
    all.shape_ = all.shape_.with(0, all.size(0) + part.size(0));
  }
  return all;
}

}  // namespace witan
