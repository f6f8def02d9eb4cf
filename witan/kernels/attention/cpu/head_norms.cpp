#include <cmath>
#include <vector>

#include "witan/kernels/attention/cpu/rotate.h"
#include "witan/kernels/attention/heads.h"
#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/norm/norm.h"

namespace witan::kernels::cpu {
namespace {

// to = from, with heads [.., H, hd] rotated by the angles of their tokens; `sign` -1 rotates back.
void turn_heads(Stream& stream, const Tensor& to, const Tensor& from, const Tensor& table, const RopeArgs& args,
                int sign) {
  const int64_t H = from.size(2), hd = from.size(3);
  dispatch_floating(from.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    for_rows(stream, from, [&](int64_t row) {
      const A* angles = args.dims > 0 ? table.data<A>() + row / H * args.dims : nullptr;
      rotate_head(to.data<T>() + row * hd, from.data<T>() + row * hd, angles, hd, args, A(sign));
    });
  });
}

void norm_and_turn(Stream& stream, const HeadNorm& of, const Tensor& table, const RopeArgs& args, double eps) {
  const int64_t H = of.x.size(2), hd = of.x.size(3), rows = of.x.shape().as_rows().first;
  dispatch_floating(of.x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const T* weight = of.w.values.data<T>();
    const A added = of.w.added<A>();
    stream.pool().for_ranges(rows, kTaskElements / hd, [&](int64_t begin, int64_t end) {
      std::vector<T> normed(static_cast<size_t>(hd));
      for (int64_t row = begin; row < end; ++row) {
        const T* in = of.x.data<T>() + row * hd;
        T* out = normed.data();
        A squares = 0;
#pragma omp simd reduction(+ : squares)
        for (int64_t d = 0; d < hd; ++d) squares += A(in[d]) * A(in[d]);
        const A s = of.r.data<A>()[row] = A(1) / std::sqrt(squares / A(hd) + A(eps));
#pragma omp simd
        for (int64_t d = 0; d < hd; ++d) store(out[d], A(in[d]) * s * (A(weight[d]) + added));
        const A* angles = args.dims > 0 ? table.data<A>() + row / H * args.dims : nullptr;
        rotate_head(of.y.data<T>() + row * hd, normed.data(), angles, hd, args, A(1));
      }
    });
  });
}

}  // namespace

void head_norms_forward(Stream& stream, const HeadNorm& q, const HeadNorm& k, const Tensor& table, const RopeArgs& args,
                        double eps) {
  norm_and_turn(stream, q, table, args, eps);
  norm_and_turn(stream, k, table, args, eps);
}

void head_norms_backward(Stream& stream, const HeadNormGradient& q, const HeadNormGradient& k, const Tensor& table,
                         const RopeArgs& args) {
  for (const HeadNormGradient* of : {&q, &k}) {
    turn_heads(stream, of->dx, of->dy, table, args, -1);
    rmsnorm_backward_weight(stream, of->dw, of->write, of->dx, of->x, of->r);
    cpu::rmsnorm_backward_input(stream, of->dx, of->dx, of->x, of->w, of->r);
  }
}

}  // namespace witan::kernels::cpu
