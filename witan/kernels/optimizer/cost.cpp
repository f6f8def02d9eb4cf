#include <bit>

#include "witan/kernels/common/device_table.h"
#include "witan/kernels/optimizer/optimizer.h"
#include "witan/kernels/optimizer/optimizer_table.h"

namespace witan::kernels {
namespace {

// `work`: FLOPs of an element.
Cost cost_of(std::span<const UpdateItem> items, double work) {
  Cost cost;
  for (const auto& [t, weight_decay] : items) {
    double state = 0;
    for (const Tensor& tensor : t.state) state += bytes_of(tensor);
    cost += {work * static_cast<double>(t.value.elements()),
             bytes_of(t.gradient) + 2 * (bytes_of(t.value, t.remainder) + state)};
  }
  return cost;
}

}  // namespace

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

void adamw_all(Stream& stream, std::span<const UpdateItem> items, const Tensor& table, const Tensor& step,
               const AdamWArgs& args) {
  WITAN_LAUNCH(stream, adamw_all, cost_of(items, 16), items, table, step, args);
}

void sgd_all(Stream& stream, std::span<const UpdateItem> items, const Tensor& table, const Tensor& step,
             const SgdArgs& args) {
  WITAN_LAUNCH(stream, sgd_all, cost_of(items, 7), items, table, step, args);
}

void lion_all(Stream& stream, std::span<const UpdateItem> items, const Tensor& table, const Tensor& step,
              const LionArgs& args) {
  WITAN_LAUNCH(stream, lion_all, cost_of(items, 12), items, table, step, args);
}

void ademamix_all(Stream& stream, std::span<const UpdateItem> items, const Tensor& table, const Tensor& step,
                  const AdEMAMixArgs& args) {
  WITAN_LAUNCH(stream, ademamix_all, cost_of(items, 21), items, table, step, args);
}

void square_sums(Stream& stream, const Tensor& sums, const Tensor& x) {
  WITAN_LAUNCH(stream, square_sums, (Cost{3.0 * static_cast<double>(x.elements()), bytes_of(x, sums)}), sums, x);
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

void square_sums_all(Stream& stream, const Tensor& sums, std::span<const SquareSumsItem> items, const Tensor& table) {
  Cost cost;
  for (const auto& [x, first_row] : items) {
    const auto [pieces, elements] = x.shape().as_rows();
    cost += {3.0 * static_cast<double>(x.elements()),
             bytes_of(x) + 16.0 * static_cast<double>(pieces * chunks_of(elements))};
  }
  WITAN_LAUNCH(stream, square_sums_all, cost, sums, items, table);
}

void total_sums(Stream& stream, const Tensor& total, const Tensor& sums, const Tensor& order) {
  const Cost cost{static_cast<double>(sums.elements()), bytes_of(total, sums, order)};
  WITAN_LAUNCH(stream, total_sums, cost, total, sums, order);
}

void clip_by_norm(Stream& stream, const Tensor& step, const Tensor& total, double max_norm) {
  WITAN_LAUNCH(stream, clip_by_norm, (Cost{4.0, bytes_of(step, total)}), step, total, max_norm);
}

void scale_losses(Stream& stream, const Tensor& scaled, const Tensor& weights, const Tensor& scaler) {
  const Cost cost{static_cast<double>(scaled.elements()), bytes_of(scaled, weights, scaler)};
  WITAN_LAUNCH(stream, scale_losses, cost, scaled, weights, scaler);
}

void unscale_total(Stream& stream, const Tensor& total, const Tensor& scaler) {
  WITAN_LAUNCH(stream, unscale_total, (Cost{2.0, bytes_of(total, scaler)}), total, scaler);
}

void adapt_loss_scale(Stream& stream, const Tensor& step, const Tensor& scaler, const LossScaleArgs& args) {
  WITAN_LAUNCH(stream, adapt_loss_scale, (Cost{4.0, bytes_of(step, scaler)}), step, scaler, args);
}

void skip_spikes(Stream& stream, const Tensor& step, const Tensor& history, const Tensor& total, const Tensor& losses,
                 const Tensor& order, double sigma) {
  const Cost cost{3.0 * static_cast<double>(history.elements()), bytes_of(step, history, total, losses, order)};
  WITAN_LAUNCH(stream, skip_spikes, cost, step, history, total, losses, order, sigma);
}

}  // namespace witan::kernels
