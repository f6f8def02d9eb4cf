#include "witan/kernels/pointwise/cuda/map.cuh"
#include "witan/kernels/pointwise/elementwise.h"

namespace witan::kernels::cuda {
namespace {

template <class T>
struct SoftCap {
  Acc<T> inner, cap;
  __device__ T operator()(T x) const { return convert<T>(cap * tanh(inner * convert<Acc<T>>(x))); }
};

template <class T>
struct SoftCapSlope {
  Acc<T> scale, share;
  __device__ T operator()(T dy, T y) const {
    const Acc<T> tangent = convert<Acc<T>>(y) * share;
    return convert<T>(scale * (Acc<T>(1) - tangent * tangent) * convert<Acc<T>>(dy));
  }
};

}  // namespace

void soft_cap_forward(Stream& stream, const Tensor& y, const Tensor& x, double scale, double cap) {
  dispatch_device(x.dtype(), [&]<class T>() {
    map<T, T>(stream, y, x, SoftCap<T>{static_cast<Acc<T>>(scale / cap), static_cast<Acc<T>>(cap)});
  });
}

void soft_cap_backward(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& y, double scale, double cap) {
  dispatch_device(y.dtype(), [&]<class T>() {
    map<T, T, T>(stream, dx, dy, y, SoftCapSlope<T>{static_cast<Acc<T>>(scale), static_cast<Acc<T>>(1 / cap)});
  });
}

}  // namespace witan::kernels::cuda
