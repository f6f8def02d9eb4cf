#include "witan/kernels/attention/head_norms.h"

namespace witan::kernels {

void head_norms_forward(Stream& stream, const HeadNorm& q, const HeadNorm& k, const Tensor& table, const RopeArgs& args,
                        double eps) {
  const Cost cost{7.0 * static_cast<double>(q.x.elements() + k.x.elements()),
                  bytes_of(q.y, q.r, q.x, q.w, k.y, k.r, k.x, k.w, table)};
  WITAN_LAUNCH(stream, head_norms_forward, cost, q, k, table, args, eps);
}

void head_norms_backward(Stream& stream, const HeadNormGradient& q, const HeadNormGradient& k, const Tensor& table,
                         const RopeArgs& args) {
  const Cost cost{14.0 * static_cast<double>(q.x.elements() + k.x.elements()),
                  bytes_of(q.dx, q.dw, q.dy, q.x, q.w, q.r, table) + bytes_of(k.dx, k.dw, k.dy, k.x, k.w, k.r)};
  WITAN_LAUNCH(stream, head_norms_backward, cost, q, k, table, args);
}

}  // namespace witan::kernels
