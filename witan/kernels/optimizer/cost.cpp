#include <cassert>

#include "witan/kernels/gemm/cpu/gemm_blocks.h"
#include "witan/kernels/optimizer/muon.h"
#include "witan/kernels/optimizer/optimizer.h"
#include "witan/kernels/optimizer/shampoo.h"
#include "witan/kernels/optimizer/soap.h"

namespace witan::kernels {
namespace {

// `work`: FLOPs per element.
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

// Workspace for syevd or, for Gram-Schmidt, two matrices, v once more, and the blocks of rows and their order.
int64_t basis_work(int64_t n, int64_t of_v) {
  return 4 * n * n + 96 * n + 1024 + of_v;
}

}  // namespace

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

void shampoo_moments(Stream& stream, const ShampooMoments& t, const Tensor& step, const ShampooMomentArgs& args) {
  const Cost cost{18.0 * static_cast<double>(t.outer.elements()),
                  bytes_of(t.gradient, t.outer, t.filtered, t.grafted) + 2 * bytes_of(t.m, t.v)};
  WITAN_LAUNCH(stream, shampoo_moments, cost, t, step, args);
}

void decay_factor(Stream& stream, const Tensor& x, const Tensor& step, double beta) {
  WITAN_LAUNCH(stream, decay_factor, (Cost{static_cast<double>(x.elements()), 2 * bytes_of(x)}), x, step, beta);
}

void graft(Stream& stream, const Tensor& direction, const Tensor& grafted, const Tensor& sums, const Tensor& step,
           const GraftArgs& args) {
  assert(direction.shape() == grafted.shape() && direction.stride(1) == 1 && grafted.stride(1) == 1);
  const Cost cost{5.0 * static_cast<double>(direction.elements()), 3 * bytes_of(direction) + 2 * bytes_of(grafted)};
  WITAN_LAUNCH(stream, graft, cost, direction, grafted, sums, step, args);
}

void apply_direction(Stream& stream, const DirectedTensors& t, const Tensor& step, const DirectedArgs& args) {
  const Cost cost{4.0 * static_cast<double>(t.value.elements()),
                  bytes_of(t.direction) + 2 * bytes_of(t.value, t.remainder)};
  WITAN_LAUNCH(stream, apply_direction, cost, t, step, args);
}

void soap_moments(Stream& stream, const SoapMoments& t, const Tensor& step, const SoapMomentArgs& args) {
  const Cost cost{5.0 * static_cast<double>(t.outer.elements()),
                  bytes_of(t.gradient, t.outer, t.scaled) + 2 * bytes_of(t.m)};
  WITAN_LAUNCH(stream, soap_moments, cost, t, step, args);
}

void soap_direction(Stream& stream, const Tensor& direction, const Tensor& v, const Tensor& gradient, const Tensor& m,
                    const Tensor& step, const SoapDirectionArgs& args) {
  const Cost cost{9.0 * static_cast<double>(v.elements()), bytes_of(direction, gradient, m) + 2 * bytes_of(v)};
  WITAN_LAUNCH(stream, soap_direction, cost, direction, v, gradient, m, step, args);
}

void renew_basis(Stream& stream, const Tensor& basis, const Tensor& v, const Tensor& factor, const Tensor& step,
                 const BasisArgs& args) {
  assert(basis.contiguous() && factor.contiguous() && v.contiguous());
  const int64_t n = factor.size(0);
  const auto size = static_cast<double>(n);
  const double share = 1 / static_cast<double>(args.frequency);
  const Cost cost{share * 6 * size * size * size, share * (4 * bytes_of(factor) + 2 * bytes_of(v))};
  const Tensor work = stream.empty({basis_work(n, v.elements())}, factor.dtype(), MemoryTag::workspace);
  const Tensor packed =
      stream.plans_for_cuda() ? Tensor() : cpu::gemm_workspace(stream, factor.dtype(), factor.dtype(), n);
  charge(stream, "renew_basis", cost, [&] {
    if (stream.is_cuda())
      WITAN_CALL_CUDA(renew_basis, stream, basis, v, factor, work, step, args);
    else
      cpu::renew_basis(stream, basis, v, factor, work, packed, step, args);
  });
}

}  // namespace witan::kernels
