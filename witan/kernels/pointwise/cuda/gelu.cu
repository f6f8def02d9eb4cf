// GELU and GEGLU, exact and approximated.
#include "witan/kernels/pointwise/cuda/activation.cuh"

namespace witan::kernels::cuda {
namespace {

// Calls body.template operator()<Function>() with the rule of a kind.
template <class Body>
void with_gelu(GeluKind kind, const Body& body) {
  if (kind == GeluKind::exact)
    body.template operator()<rules::ExactGelu<Math>>();
  else
    body.template operator()<rules::TanhGelu<Math>>();
}

}  // namespace

void gelu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups,
                  GeluKind kind) {
  with_gelu(kind, [&]<class Gelu>() { activation_forward<Gelu, false>(stream, y, h, s, groups); });
}

void gelu_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                   const Tensor& s, const RowGroups& groups, GeluKind kind) {
  with_gelu(kind, [&]<class Gelu>() { activation_backward<Gelu, false>(stream, dh, ds, dy, h, s, groups); });
}

void geglu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups,
                   GeluKind kind) {
  with_gelu(kind, [&]<class Gelu>() { activation_forward<Gelu, true>(stream, y, h, s, groups); });
}

void geglu_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                    const Tensor& s, const RowGroups& groups, GeluKind kind) {
  with_gelu(kind, [&]<class Gelu>() { activation_backward<Gelu, true>(stream, dh, ds, dy, h, s, groups); });
}

}  // namespace witan::kernels::cuda
