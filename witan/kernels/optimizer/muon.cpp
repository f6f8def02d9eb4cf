#include "witan/kernels/optimizer/muon.h"

#include <array>
#include <bit>
#include <cassert>

#include "witan/kernels/common/device_table.h"
#include "witan/kernels/optimizer/muon_table.h"
#include "witan/kernels/optimizer/optimizer.h"
#include "witan/kernels/optimizer/optimizer_table.h"

namespace witan::kernels {

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

void muon_momentum(Stream& stream, std::span<const MuonItem> items, const Tensor& table, const Tensor& step,
                   const MuonArgs& args) {
  Cost cost;
  for (const MuonItem& item : items)
    cost += {5.0 * static_cast<double>(item.value.elements()),
             bytes_of(item.gradient, item.direction) + 2 * bytes_of(item.momentum)};
  WITAN_LAUNCH(stream, muon_momentum, cost, items, table, step, args);
}

void muon_update(Stream& stream, std::span<const MuonItem> items, const Tensor& table, const Tensor& step,
                 const MuonArgs& args) {
  Cost cost;
  for (const MuonItem& item : items)
    cost += {4.0 * static_cast<double>(item.value.elements()),
             bytes_of(item.orthogonal) + 2 * bytes_of(item.value, item.remainder)};
  WITAN_LAUNCH(stream, muon_update, cost, items, table, step, args);
}

void normalize_matrices(Stream& stream, const Tensor& x, const Tensor& sums, const NormalizeArgs& args) {
  assert(x.contiguous() && sums.shape() == (Shape{x.size(0) * chunks_of(x.elements() / x.size(0)), 2}));
  const Cost cost{static_cast<double>(x.elements()), 2 * bytes_of(x) + bytes_of(sums)};
  WITAN_LAUNCH(stream, normalize_matrices, cost, x, sums, args);
}

void row_squares(Stream& stream, const Tensor& squares, const Tensor& x) {
  const Cost cost{2.0 * static_cast<double>(x.elements()), bytes_of(x, squares)};
  WITAN_LAUNCH(stream, row_squares, cost, squares, x);
}

void normuon_moments(Stream& stream, const NorMuonTensors& t, const Tensor& step, const NorMuonArgs& args) {
  const Cost cost{8.0 * static_cast<double>(t.v.elements()), 2 * bytes_of(t.v) + bytes_of(t.factors, t.squares)};
  WITAN_LAUNCH(stream, normuon_moments, cost, t, step, args);
}

void scale_rows(Stream& stream, const Tensor& x, const Tensor& factors, const Tensor& totals) {
  const Cost cost{static_cast<double>(x.elements()), 2 * bytes_of(x) + bytes_of(factors, totals)};
  WITAN_LAUNCH(stream, scale_rows, cost, x, factors, totals);
}

}  // namespace witan::kernels
