#include <array>
#include <bit>
#include <cassert>

#include "witan/kernels/common/device_table.h"
#include "witan/kernels/optimizer/muon.h"
#include "witan/kernels/optimizer/optimizer.h"
#include "witan/kernels/optimizer/optimizer_table.h"

namespace witan::kernels {

std::vector<int64_t> update_table(std::span<const UpdateItem> items) {
  std::vector<int64_t> table;
  for_update_kinds(items, [&](DType value, DType gradient) {
    int64_t chunks = 0;
    for (const auto& [t, weight_decay] : items) {
      if (t.value.dtype() != value || t.gradient.dtype() != gradient) continue;
      const int64_t elements = t.value.elements();
      const UpdateRow row{address_of(t.value),
                          address_of(t.remainder),
                          {address_of(t.state[0]), address_of(t.state[1]), address_of(t.state[2])},
                          address_of(t.gradient),
                          elements,
                          chunks,
                          weight_decay};
      const auto values = std::bit_cast<std::array<int64_t, kUpdateColumns>>(row);
      table.insert(table.end(), values.begin(), values.end());
      chunks += update_chunks_of(elements);
    }
  });
  return table;
}

std::vector<int64_t> square_sums_table(std::span<const SquareSumsItem> items) {
  std::vector<int64_t> table;
  int64_t chunks = 0;
  for (const auto& [x, first_row] : items) {
    const auto [pieces, elements] = x.shape().as_rows();
    const SquareSumsRow row{address_of(x), elements,  chunks_of(elements),
                            chunks,        first_row, static_cast<int64_t>(x.dtype())};
    const auto values = std::bit_cast<std::array<int64_t, kSquareSumsColumns>>(row);
    table.insert(table.end(), values.begin(), values.end());
    chunks += pieces * chunks_of(elements);
  }
  return table;
}

std::vector<int64_t> muon_table(std::span<const MuonItem> items) {
  std::vector<int64_t> table;
  int64_t chunks = 0;
  for (const MuonItem& item : items) {
    assert(item.value.dtype() == items[0].value.dtype() && item.gradient.dtype() == items[0].gradient.dtype());
    const int64_t elements = item.value.elements();
    const MuonRow row{address_of(item.value),
                      address_of(item.remainder),
                      address_of(item.momentum),
                      address_of(item.gradient),
                      address_of(item.direction),
                      address_of(item.orthogonal),
                      elements,
                      chunks,
                      item.weight_decay,
                      item.scale};
    const auto values = std::bit_cast<std::array<int64_t, kMuonColumns>>(row);
    table.insert(table.end(), values.begin(), values.end());
    chunks += update_chunks_of(elements);
  }
  return table;
}

}  // namespace witan::kernels
