// A small table on a GPU with the addresses and sizes of many tensors, for kernels that work on all of them. The host
// keeps a copy and writes the table again only if it differs, which is rare: tensors stay where they are.
#pragma once

#include <bit>
#include <cassert>
#include <utility>
#include <vector>

#include "witan/tensor/tensor.h"

namespace witan::kernels {

// The address of a tensor as a table holds it: 0 for an undefined one.
inline int64_t address_of(const Tensor& tensor) {
  return tensor.defined() ? std::bit_cast<int64_t>(tensor.raw()) : 0;
}

class DeviceTable {
 public:
  // A table of `values` int64 on a GPU or a meta device that stands for one; a CPU needs none.
  DeviceTable(Stream& stream, int64_t values, MemoryTag tag) {
    if (stream.plans_for_cuda()) table_ = stream.empty({values}, DType::i64, tag);
  }

  // The table with these values; undefined on a CPU. Nothing is copied if it holds them already, so that a captured
  // step copies nothing.
  const Tensor& holding(Stream& stream, std::vector<int64_t> values) {
    if (!table_.defined() || values == written_) return table_;
    assert(static_cast<int64_t>(values.size()) == table_.elements());
    stream.write(table_, values.data());
    written_ = std::move(values);
    return table_;
  }

 private:
  Tensor table_;
  std::vector<int64_t> written_;
};

}  // namespace witan::kernels
