#include "witan/kernels/pointwise/cuda/map.cuh"
#include "witan/kernels/pointwise/elementwise.h"

namespace witan::kernels::cuda {
namespace {

template <class T>
struct Clamped {
  Acc<T> bound;
  __device__ T operator()(T x) const {
    const Acc<T> value = convert<Acc<T>>(x);
    return convert<T>(value < -bound ? -bound : value > bound ? bound : value);
  }
};

template <class T>
struct WhereWithin {
  Acc<T> bound;
  __device__ T operator()(T dy, T x) const {
    const Acc<T> value = convert<Acc<T>>(x);
    return value >= -bound && value <= bound ? dy : convert<T>(Acc<T>(0));
  }
};

}  // namespace

void clamp_forward(Stream& stream, const Tensor& y, const Tensor& x, double bound) {
  dispatch_device(x.dtype(), [&]<class T>() { map<T, T>(stream, y, x, Clamped<T>{static_cast<Acc<T>>(bound)}); });
}

void clamp_backward(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& x, double bound) {
  dispatch_device(x.dtype(),
                  [&]<class T>() { map<T, T, T>(stream, dx, dy, x, WhereWithin<T>{static_cast<Acc<T>>(bound)}); });
}

}  // namespace witan::kernels::cuda
