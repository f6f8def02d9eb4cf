// A small table on a GPU, by which one kernel finds many tensors: their addresses and sizes. The host's copy decides
// when it must be written again, which after the first time is hardly ever: tensors stay where they are.
#pragma once

#include <bit>
#include <cassert>
#include <utility>
#include <vector>

#include "witan/tensor/tensor.h"

namespace witan::kernels {

// As a table holds it: 0 for an undefined tensor.
inline int64_t address_of(const Tensor& tensor) {
  return tensor.defined() ? std::bit_cast<int64_t>(tensor.raw()) : 0;
}

class DeviceTable {
 public:
  // Of so many int64, in the memory of GPUs and of meta devices that stand for one; a CPU needs none.
  DeviceTable(Stream& stream, int64_t values, MemoryTag tag) {
    if (stream.plans_for_cuda()) table_ = stream.empty({values}, DType::i64, tag);
  }

  // The table, holding `values`; undefined on a CPU. Nothing is copied where it holds them already, so that a recorded
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
