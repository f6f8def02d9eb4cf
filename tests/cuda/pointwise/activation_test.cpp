#include "witan/kernels/pointwise/activation.h"

#include "support/cuda_rank.h"

namespace witan {
namespace {

using testing::CudaTest;
using testing::values;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};

class Activations : public CudaTest {
 protected:
  struct Case {
    DType dtype;
    int64_t rows, F;
    bool weighted;  // s and ds
    bool grouped;   // some rows are in no group
    std::string what() const {
      return cat(dtype, " [", rows, ", ", F, "]", weighted ? " weighted" : "", grouped ? " grouped" : "");
    }
  };

  // Groups out of order, one of them empty, with rows between them and at the end that belong to no group.
  RowGroups groups_of(const Case& in, bool on_gpu) {
    if (!in.grouped) return {};
    const int64_t third = in.rows / 3;
    const Tensor begin = host.tensor<int64_t>({4}, {2 * third, 0, third, third}),
                 count = host.tensor<int64_t>({4}, {std::max<int64_t>(third - 1, 0), third, 0, third / 2});
    return on_gpu ? RowGroups{to_gpu(begin), to_gpu(count)} : RowGroups{begin, count};
  }

  // Checks forward(stream, y, h, s, groups) and backward(stream, dh, ds, dy, h, s, groups), with h [rows, wide F].
  // Outputs begin with equal values on both devices, so that rows outside the groups must not change.
  template <class Forward, class Backward>
  void check(int64_t wide, const Forward& forward, const Backward& backward) {
    for (const DType dtype : kDTypes)
      // Blocks with one, some or many rows, and a row that a block's threads walk through more than once.
      for (const auto& [rows, F] : {std::pair<int64_t, int64_t>{0, 8},
                                    {1, 1},
                                    {10, 37},
                                    {33, 264},
                                    {13, 1792},
                                    {600, 96},
                                    {3000, 8},
                                    {3, 20000},
                                    {201, 1021}})
        for (const bool weighted : {false, true})
          for (const bool grouped : {false, true})
            check_case({dtype, rows, F, weighted, grouped}, wide, forward, backward);
  }

 private:
  template <class Forward, class Backward>
  void check_case(const Case& in, int64_t wide, const Forward& forward, const Backward& backward) {
    SCOPED_TRACE(in.what());
    const Tensor h = host.normal({in.rows, wide * in.F}, in.dtype, "h", 3),
                 dy = host.normal({in.rows, in.F}, in.dtype, "dy"),
                 s = in.weighted ? host.normal({in.rows}, accumulator(in.dtype), "s") : Tensor();
    const Tensor y = host.normal({in.rows, in.F}, in.dtype, "y"),
                 dh = host.normal({in.rows, wide * in.F}, in.dtype, "dh"),
                 ds = in.weighted ? host.normal({in.rows}, accumulator(in.dtype), "ds") : Tensor();
    const Tensor y_gpu = to_gpu(y), dh_gpu = to_gpu(dh), ds_gpu = to_gpu(ds), h_gpu = to_gpu(h), dy_gpu = to_gpu(dy),
                 s_gpu = to_gpu(s);
    const RowGroups groups = groups_of(in, false), groups_gpu = groups_of(in, true);
    forward(host.stream, y, h, s, groups);
    forward(gpu(), y_gpu, h_gpu, s_gpu, groups_gpu);
    const double allowed = tolerance(in.dtype);
    EXPECT_TRUE(agree(y_gpu, y, allowed, allowed)) << "y";
    backward(host.stream, dh, ds, dy, h, s, groups);
    backward(gpu(), dh_gpu, ds_gpu, dy_gpu, h_gpu, s_gpu, groups_gpu);
    EXPECT_TRUE(agree(dh_gpu, dh, allowed, allowed)) << "dh";
    if (in.weighted) {
      EXPECT_TRUE(agree(ds_gpu, ds, 10 * tolerance(ds.dtype()), 10 * tolerance(ds.dtype()))) << "ds";
    }
    if (in.grouped) return;
    backward(gpu(), h_gpu, ds_gpu, dy_gpu, h_gpu, s_gpu, groups_gpu);
    EXPECT_EQ(values(to_host(h_gpu)), values(to_host(dh_gpu))) << "in place";
  }
};

TEST_F(Activations, SwiGlu) {
  check(2, kernels::swiglu_forward, kernels::swiglu_backward);
}

TEST_F(Activations, GeluAndGeGluOfEitherKind) {
  for (const GeluKind kind : {GeluKind::exact, GeluKind::tanh}) {
    check(
        1, [&](Stream& stream, auto&&... in) { kernels::gelu_forward(stream, in..., kind); },
        [&](Stream& stream, auto&&... in) { kernels::gelu_backward(stream, in..., kind); });
    check(
        2, [&](Stream& stream, auto&&... in) { kernels::geglu_forward(stream, in..., kind); },
        [&](Stream& stream, auto&&... in) { kernels::geglu_backward(stream, in..., kind); });
  }
}

TEST_F(Activations, ClampedSwiglu) {
  for (const SwigluForm& form : {SwigluForm{7, 1.702, 1}, SwigluForm{0.5, 1, 0}})
    check(
        2, [&](Stream& stream, auto&&... in) { kernels::clamped_swiglu_forward(stream, in..., form); },
        [&](Stream& stream, auto&&... in) { kernels::clamped_swiglu_backward(stream, in..., form); });
}

TEST_F(Activations, SquaredReluAloneAndAsAGate) {
  check(1, kernels::squared_relu_forward, kernels::squared_relu_backward);
  check(2, kernels::squared_reglu_forward, kernels::squared_reglu_backward);
}

TEST_F(Activations, Silu) {
  check(1, kernels::silu_forward, kernels::silu_backward);
}

// Large inputs must not give NaN.
TEST_F(Activations, LargeInputsSaturate) {
  const std::vector<float> gates = {-1e4f, -100, -89, -88, 88, 89, 100, 1e4f};
  const Tensor h = host.stream.empty({1, 16}, DType::f32), y = host.poisoned({1, 8}, DType::f32),
               dh = host.poisoned({1, 16}, DType::f32), ones = host.tensor<float>({1, 8}, std::vector<float>(8, 1));
  std::ranges::copy(gates, h.data<float>());
  std::ranges::copy(ones.span<float>(), h.data<float>() + 8);
  const Tensor y_gpu = poisoned({1, 8}, DType::f32), dh_gpu = poisoned({1, 16}, DType::f32);
  kernels::swiglu_forward(host.stream, y, h, {}, {});
  kernels::swiglu_forward(gpu(), y_gpu, to_gpu(h), {}, {});
  EXPECT_TRUE(agree(y_gpu, y, 1e-30, 2e-5));
  kernels::swiglu_backward(host.stream, dh, {}, ones, h, {}, {});
  kernels::swiglu_backward(gpu(), dh_gpu, {}, to_gpu(ones), to_gpu(h), {}, {});
  EXPECT_TRUE(agree(dh_gpu, dh, 1e-30, 2e-5));
}

}  // namespace
}  // namespace witan
