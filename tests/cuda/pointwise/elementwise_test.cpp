#include "witan/kernels/pointwise/elementwise.h"

#include "support/cuda_rank.h"

namespace witan {
namespace {

using testing::close;
using testing::CudaTest;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};
// Empty; less than a pack; packs and a remainder; many blocks and a remainder.
constexpr int64_t kSizes[] = {0, 1, 7, 1027, 8192, 100003};

class Elementwise : public CudaTest {
 protected:
  // Compares kernel(stream, y, x) on both devices, where y begins as `y`.
  template <class Kernel>
  void expect_same(const Tensor& y, const Tensor& x, const Kernel& kernel) {
    const Tensor on_gpu = to_gpu(y);
    kernel(gpu(), on_gpu, to_gpu(x));
    kernel(host.stream, y, x);
    EXPECT_TRUE(agree(on_gpu, y, 0, tolerance(y.dtype()))) << x.dtype() << " to " << y.dtype() << y.shape();
  }
  // The same values one element further on, so that no address is a multiple of 16.
  Tensor shifted(const Tensor& x) {
    const Tensor all = host.stream.zeros({x.elements() + 1}, x.dtype());
    const Tensor view = all.narrow(0, 1, x.elements());
    std::copy(x.raw(), x.raw() + x.bytes(), view.raw());
    return to_gpu(all).narrow(0, 1, x.elements());
  }
};

// Whether there is a kernel for the pair: float16 is combined only with itself and float32.
bool meet(DType a, DType b) {
  return a == b || (a != DType::f16 && b != DType::f16) || a == DType::f32 || b == DType::f32;
}

TEST_F(Elementwise, RefusesFloat16WithOtherDTypes) {
  const Tensor narrow = poisoned({8}, DType::f16), wide = poisoned({8}, DType::f64);
  EXPECT_THROW(kernels::cast(gpu(), wide, narrow), ShapeError);
  EXPECT_THROW(kernels::accumulate(gpu(), narrow, Write::accumulate, wide), ShapeError);
}

TEST_F(Elementwise, AddsAlsoInPlace) {
  for (const DType dtype : kDTypes)
    for (const int64_t n : kSizes) {
      const Tensor a = host.normal({n}, dtype, "a"), b = host.normal({n}, dtype, "b"),
                   expected = host.stream.empty({n}, dtype), y = poisoned({n}, dtype), in_place = to_gpu(a);
      kernels::add(host.stream, expected, a, b);
      kernels::add(gpu(), y, in_place, to_gpu(b));
      EXPECT_TRUE(agree(y, expected, 0, 0)) << dtype << n;
      kernels::add(gpu(), in_place, in_place, to_gpu(b));
      EXPECT_TRUE(agree(in_place, expected, 0, 0)) << dtype << n;
      kernels::add(gpu(), y, shifted(a), to_gpu(b));
      EXPECT_TRUE(agree(y, expected, 0, 0)) << dtype << n;
    }
}

TEST_F(Elementwise, MultipliesAlsoInPlace) {
  for (const DType dtype : kDTypes)
    for (const int64_t n : kSizes) {
      const Tensor a = host.normal({n}, dtype, "a"), b = host.normal({n}, dtype, "b"),
                   expected = host.stream.empty({n}, dtype), y = poisoned({n}, dtype), in_place = to_gpu(a);
      kernels::product(host.stream, expected, a, b);
      kernels::product(gpu(), y, shifted(a), to_gpu(b));
      EXPECT_TRUE(agree(y, expected, 0, 0)) << dtype << n;
      kernels::product(gpu(), in_place, in_place, to_gpu(b));
      EXPECT_TRUE(agree(in_place, expected, 0, 0)) << dtype << n;
    }
}

TEST_F(Elementwise, AddsCountsExactly) {
  for (const int64_t n : kSizes) {
    const Tensor a = host.stream.empty({n}, DType::i64), b = host.stream.empty({n}, DType::i64),
                 expected = host.stream.empty({n}, DType::i64), y = poisoned({n}, DType::i64);
    for (int64_t i = 0; i < n; ++i) {
      a.data<int64_t>()[i] = (int64_t{1} << 55) + i;  // not representable in float64
      b.data<int64_t>()[i] = -3 * i;
    }
    kernels::add(host.stream, expected, a, b);
    kernels::add(gpu(), y, shifted(a), to_gpu(b));
    EXPECT_TRUE(std::ranges::equal(to_host(y).span<int64_t>(), expected.span<int64_t>())) << n;
  }
}

TEST_F(Elementwise, ScalesCastsAndAccumulatesAcrossDTypes) {
  for (const DType from : kDTypes)
    for (const DType to : kDTypes)
      for (const int64_t n : kSizes) {
        if (!meet(from, to)) continue;
        const Tensor x = host.normal({n}, from, "x");
        for (const Write write : {Write::overwrite, Write::accumulate}) {
          const Tensor y = write == Write::overwrite ? host.poisoned({n}, to) : host.normal({n}, to, "y");
          expect_same(y, x, [&](Stream& stream, const Tensor& out, const Tensor& in) {
            kernels::accumulate(stream, out, write, in);
          });
          // Terms may cancel, so errors are compared with the size of the terms.
          const Tensor z = write == Write::overwrite ? host.poisoned({n}, to) : host.normal({n}, to, "z");
          const Tensor on_gpu = to_gpu(z);
          kernels::scale(gpu(), on_gpu, write, to_gpu(x), -1.5);
          kernels::scale(host.stream, z, write, x, -1.5);
          EXPECT_TRUE(agree(on_gpu, z, tolerance(to), tolerance(to))) << from << " to " << to << n;
        }
        expect_same(host.poisoned({n}, to), x,
                    [](Stream& stream, const Tensor& out, const Tensor& in) { kernels::cast(stream, out, in); });
      }
}

TEST_F(Elementwise, SumsInAnOrderOfItsOwn) {
  for (const DType dtype : kDTypes)
    for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{4096}, int64_t{4097}, int64_t{3000001}}) {
      const Tensor x = host.normal({n}, dtype, "x"), expected = host.stream.empty({1}, accumulator(dtype));
      const int64_t blocks = (n + kernels::kSumBlock - 1) / kernels::kSumBlock;
      kernels::sum(host.stream, expected, host.stream.empty({blocks}, DType::f64), x);
      const Tensor y = poisoned({1}, accumulator(dtype)), again = poisoned({1}, accumulator(dtype));
      for (const Tensor& out : {y, again}) kernels::sum(gpu(), out, poisoned({blocks}, DType::f64), to_gpu(x));
      EXPECT_TRUE(agree(y, expected, 1e-2 * tolerance(accumulator(dtype)) * std::sqrt(static_cast<double>(n)), 1e-5))
          << dtype << n;
      EXPECT_EQ(testing::values(to_host(y)), testing::values(to_host(again)));
    }
}

TEST_F(Elementwise, BroadcastAndFillWriteEveryElement) {
  for (const DType dtype : kDTypes)
    for (const int64_t n : kSizes)
      for (const DType from : kDTypes) {
        if (!meet(from, dtype)) continue;
        const Tensor x = host.normal({1}, from, "x"), expected = host.stream.empty({n}, dtype);
        kernels::broadcast(host.stream, expected, x);
        const Tensor y = poisoned({n}, dtype);
        kernels::broadcast(gpu(), y, to_gpu(x));
        EXPECT_TRUE(agree(y, expected, 0, 0)) << dtype << n;
        kernels::fill(host.stream, expected, 0.3);
        kernels::fill(gpu(), y, 0.3);
        EXPECT_TRUE(agree(y, expected, 0, 0)) << dtype << n;
        const Tensor whole = poisoned({n + 1}, dtype), view = whole.narrow(0, 1, n);
        kernels::fill(gpu(), view, 0.3);
        EXPECT_TRUE(agree(view, expected, 0, 0)) << dtype << n;
        EXPECT_TRUE(std::isnan(testing::values(to_host(whole))[0]));
      }
}

class ClampOnGpu : public testing::CudaTest {};

TEST_F(ClampOnGpu, AgreesWithTheCpuToTheBit) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const int64_t elements : {0, 1, 37, 4096, 10001}) {
      const Tensor x = host.normal({elements}, dtype, "x"), dy = host.normal({elements}, dtype, "dy"),
                   y = host.poisoned({elements}, dtype), dx = host.poisoned({elements}, dtype);
      const Tensor y_gpu = poisoned({elements}, dtype), dx_gpu = poisoned({elements}, dtype);
      kernels::clamp_forward(host.stream, y, x, 0.75);
      kernels::clamp_backward(host.stream, dx, dy, x, 0.75);
      kernels::clamp_forward(gpu(), y_gpu, to_gpu(x), 0.75);
      kernels::clamp_backward(gpu(), dx_gpu, to_gpu(dy), to_gpu(x), 0.75);
      EXPECT_TRUE(agree(y_gpu, y, 0, 0)) << dtype << " " << elements;
      EXPECT_TRUE(agree(dx_gpu, dx, 0, 0)) << dtype << " " << elements;
    }
}

class RowGateOnGpu : public testing::CudaTest {};

TEST_F(RowGateOnGpu, AgreesWithTheCpu) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const auto& [T, D] : {std::pair<int64_t, int64_t>{0, 8}, {1, 1}, {10, 37}, {33, 264}, {13, 2048}}) {
      SCOPED_TRACE(cat(dtype, " [", T, ", ", D, "]"));
      const Tensor x = host.normal({T, D}, dtype, "x"), gate = host.normal({T}, dtype, "gate", 3),
                   dy = host.normal({T, D}, dtype, "dy"), y = host.poisoned({T, D}, dtype),
                   dx = host.poisoned({T, D}, dtype), dgate = host.poisoned({T}, dtype);
      const Tensor y_gpu = poisoned({T, D}, dtype), dx_gpu = poisoned({T, D}, dtype), dgate_gpu = poisoned({T}, dtype);
      kernels::row_gate_forward(host.stream, y, x, gate);
      kernels::row_gate_backward(host.stream, dx, dgate, dy, x, gate);
      kernels::row_gate_forward(gpu(), y_gpu, to_gpu(x), to_gpu(gate));
      kernels::row_gate_backward(gpu(), dx_gpu, dgate_gpu, to_gpu(dy), to_gpu(x), to_gpu(gate));
      const double allowed = tolerance(dtype);
      EXPECT_TRUE(agree(y_gpu, y, allowed, allowed));
      EXPECT_TRUE(agree(dx_gpu, dx, allowed, allowed));
      EXPECT_TRUE(agree(dgate_gpu, dgate, 10 * allowed, 10 * allowed));
    }
}

class ScaledSumOnGpu : public testing::CudaTest {};

TEST_F(ScaledSumOnGpu, AgreesWithTheCpu) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{37}, int64_t{8192}, int64_t{100003}}) {
      SCOPED_TRACE(cat(dtype, " [", n, "]"));
      const Tensor a = host.normal({n}, dtype, "a"), b = host.normal({n}, dtype, "b"),
                   dy = host.normal({n}, dtype, "dy"), wa = host.normal({1}, dtype, "wa"),
                   wb = host.normal({1}, dtype, "wb");
      const double allowed = tolerance(dtype);
      for (const bool both : {false, true}) {
        const Tensor y = host.poisoned({n}, dtype), y_gpu = poisoned({n}, dtype);
        kernels::scaled_sum(host.stream, y, a, wa, both ? b : Tensor(), both ? wb : Tensor());
        kernels::scaled_sum(gpu(), y_gpu, to_gpu(a), to_gpu(wa), both ? to_gpu(b) : Tensor(),
                            both ? to_gpu(wb) : Tensor());
        EXPECT_TRUE(agree(y_gpu, y, allowed, allowed));
      }
      const int64_t blocks = (n + kernels::kSumBlock - 1) / kernels::kSumBlock;
      const Tensor partials = host.stream.empty({blocks}, DType::f64), partials_gpu = poisoned({blocks}, DType::f64);
      for (const Write write : {Write::overwrite, Write::accumulate}) {
        const Tensor dx = host.poisoned({n}, dtype), dw = host.normal({1}, accumulator(dtype), "dw"),
                     dx_gpu = poisoned({n}, dtype), dw_gpu = to_gpu(dw);
        kernels::scaled_sum_backward(host.stream, dx, dw, write, partials, dy, a, wa);
        kernels::scaled_sum_backward(gpu(), dx_gpu, dw_gpu, write, partials_gpu, to_gpu(dy), to_gpu(a), to_gpu(wa));
        EXPECT_TRUE(agree(dx_gpu, dx, allowed, allowed));
        const double of_sum = 10 * tolerance(dw.dtype()) * std::sqrt(static_cast<double>(n) + 1);
        EXPECT_TRUE(agree(dw_gpu, dw, of_sum, of_sum));
        kernels::scaled_sum_backward(gpu(), {}, dw_gpu, Write::overwrite, partials_gpu, to_gpu(dy), to_gpu(a),
                                     to_gpu(wa));
        if (write == Write::overwrite) {
          EXPECT_TRUE(agree(dw_gpu, dw, of_sum, of_sum)) << "dx not wanted";
        }
      }
    }
}

class SoftCapOnGpu : public testing::CudaTest {};

TEST_F(SoftCapOnGpu, AgreesWithTheCpuAlsoInPlace) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{37}, int64_t{100003}}) {
      SCOPED_TRACE(cat(dtype, " [", n, "]"));
      const Tensor x = host.normal({n}, dtype, "x", 20), dy = host.normal({n}, dtype, "dy"),
                   y = host.poisoned({n}, dtype), dx = host.poisoned({n}, dtype);
      const Tensor x_gpu = to_gpu(x), dy_gpu = to_gpu(dy);
      kernels::soft_cap_forward(host.stream, y, x, 0.25, 15);
      kernels::soft_cap_forward(gpu(), x_gpu, x_gpu, 0.25, 15);
      const double allowed = tolerance(dtype);
      EXPECT_TRUE(agree(x_gpu, y, 15 * allowed, allowed));
      kernels::soft_cap_backward(host.stream, dx, dy, y, 0.25, 15);
      kernels::soft_cap_backward(gpu(), dy_gpu, dy_gpu, to_gpu(y), 0.25, 15);
      EXPECT_TRUE(agree(dy_gpu, dx, allowed, allowed));
    }
}

}  // namespace

}  // namespace witan
