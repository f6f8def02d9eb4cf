#include "witan/kernels/common/device_table.h"

namespace witan::kernels {

DeviceTable::DeviceTable(Stream& stream, int64_t values, MemoryTag tag) {
  if (stream.plans_for_cuda()) table_ = stream.empty({values}, DType::i64, tag);
}

const Tensor& DeviceTable::holding(Stream& stream, std::vector<int64_t> values) {
  if (!table_.defined() || values == written_) return table_;
  assert(static_cast<int64_t>(values.size()) == table_.elements());
  stream.write(table_, values.data());
  written_ = std::move(values);
  return table_;
}

}  // namespace witan::kernels
