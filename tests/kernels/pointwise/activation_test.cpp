#include "witan/kernels/pointwise/activation.h"

#include <functional>
#include <numbers>

#include "support/rank.h"

namespace witan {
namespace {

using testing::close;
using testing::Rank;
using testing::values;

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}
double gelu(double x, GeluKind kind) {
  if (kind == GeluKind::exact) return x / 2 * (1 + std::erf(x / std::numbers::sqrt2));
  return x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

double tolerance(DType dtype) {
  return dtype == DType::f64 ? 1e-12 : dtype == DType::f32 ? 2e-6 : 1e-2;
}

constexpr DType kDTypes[] = {DType::f64, DType::f32, DType::bf16};
constexpr int64_t kRows[] = {0, 1, 5};
constexpr int64_t kWidths[] = {1, 7, 16, 130};

// Runs body over dtypes, odd sizes and both with and without row weights.
void sweep(Rank& rank, const std::function<void(DType, int64_t T, int64_t F, const Tensor& s)>& body) {
  for (const DType dtype : kDTypes)
    for (const int64_t T : kRows)
      for (const int64_t F : kWidths)
        for (const bool weighted : {false, true}) {
          SCOPED_TRACE(cat(dtype, " [", T, ", ", F, "]", weighted ? " weighted" : ""));
          body(dtype, T, F, weighted ? rank.normal({T}, accumulator(dtype), "s") : Tensor());
        }
}

double weight_of(const Tensor& s, int64_t t) {
  return s.defined() ? values(s)[static_cast<size_t>(t)] : 1;
}

TEST(SwiGlu, AgreesWithTheFormula) {
  Rank rank;
  sweep(rank, [&](DType dtype, int64_t T, int64_t F, const Tensor& s) {
    const Tensor h = rank.normal({T, 2 * F}, dtype, "h", 3), y = rank.poisoned({T, F}, dtype);
    kernels::swiglu_forward(rank.stream, y, h, s, {});
    const auto in = values(h);
    std::vector<double> expected;
    for (int64_t t = 0; t < T; ++t)
      for (int64_t f = 0; f < F; ++f) {
        const double gate = in[static_cast<size_t>(t * 2 * F + f)], up = in[static_cast<size_t>(t * 2 * F + F + f)];
        expected.push_back(gate * sigmoid(gate) * up * weight_of(s, t));
      }
    EXPECT_TRUE(close(values(y), expected, tolerance(dtype), tolerance(dtype)));
  });
}

TEST(SwiGlu, BackwardAgreesWithTheFormula) {
  Rank rank;
  sweep(rank, [&](DType dtype, int64_t T, int64_t F, const Tensor& s) {
    const Tensor h = rank.normal({T, 2 * F}, dtype, "h", 2), dy = rank.normal({T, F}, dtype, "dy");
    const Tensor dh = rank.poisoned({T, 2 * F}, dtype), ds = s.defined() ? rank.poisoned({T}, s.dtype()) : Tensor();
    kernels::swiglu_backward(rank.stream, dh, ds, dy, h, s, {});
    const auto in = values(h), g = values(dy);
    std::vector<double> expected(in.size()), expected_ds(static_cast<size_t>(T));
    for (int64_t t = 0; t < T; ++t)
      for (int64_t f = 0; f < F; ++f) {
        const auto at_gate = static_cast<size_t>(t * 2 * F + f), at_up = at_gate + static_cast<size_t>(F);
        const double gate = in[at_gate], up = in[at_up], p = sigmoid(gate);
        const double d = g[static_cast<size_t>(t * F + f)];
        expected[at_gate] = d * weight_of(s, t) * up * (p + gate * p * (1 - p));
        expected[at_up] = d * weight_of(s, t) * gate * p;
        expected_ds[static_cast<size_t>(t)] += d * gate * p * up;
      }
    EXPECT_TRUE(close(values(dh), expected, tolerance(dtype), tolerance(dtype)));
    if (ds.defined()) {
      EXPECT_TRUE(close(values(ds), expected_ds, tolerance(s.dtype()) * 30, tolerance(s.dtype())));
    }
  });
}

TEST(SwiGlu, BackwardMayOverwriteItsInput) {
  Rank rank;
  const Tensor h = rank.normal({4, 22}, DType::f32, "h"), dy = rank.normal({4, 11}, DType::f32, "dy");
  const Tensor dh = rank.poisoned({4, 22}, DType::f32);
  kernels::swiglu_backward(rank.stream, dh, {}, dy, h, {}, {});
  kernels::swiglu_backward(rank.stream, h, {}, dy, h, {}, {});
  EXPECT_EQ(values(h), values(dh));
}

// A product may leave dy where up's gradients are stored; vectors must be read before they are overwritten, at any
// length.
TEST(SwiGlu, BackwardMayOverwriteItsGradient) {
  Rank rank;
  sweep(rank, [&](DType dtype, int64_t T, int64_t F, const Tensor& s) {
    const Tensor h = rank.normal({T, 2 * F}, dtype, "h", 2), dy = rank.normal({T, F}, dtype, "dy");
    const Tensor dh = rank.poisoned({T, 2 * F}, dtype), in_place = rank.poisoned({T, 2 * F}, dtype);
    const Tensor ds = s.defined() ? rank.poisoned({T}, s.dtype()) : Tensor();
    const Tensor ds_in_place = s.defined() ? rank.poisoned({T}, s.dtype()) : Tensor();
    const Tensor ups = in_place.narrow(1, F, F);
    for (int64_t t = 0; t < T; ++t) rank.stream.copy(ups.narrow(0, t, 1).reshape({F}), dy.narrow(0, t, 1).reshape({F}));
    kernels::swiglu_backward(rank.stream, dh, ds, dy, h, s, {});
    kernels::swiglu_backward(rank.stream, in_place, ds_in_place, ups, h, s, {});
    EXPECT_EQ(values(in_place), values(dh));
    if (s.defined()) {
      EXPECT_EQ(values(ds_in_place), values(ds));
    }
  });
}

TEST(SwiGlu, LargeGatesSaturate) {
  Rank rank;
  const Tensor y = rank.poisoned({1, 4}, DType::f32);
  kernels::swiglu_forward(rank.stream, y, rank.tensor<float>({1, 8}, {-200, -1e30f, 200, 0, 2, 2, 2, 2}), {}, {});
  EXPECT_EQ(values(y), (std::vector<double>{0, 0, 400, 0}));
}

TEST(Gelu, AgreesWithTheFormulaAndItsSlope) {
  Rank rank;
  for (const GeluKind kind : {GeluKind::exact, GeluKind::tanh})
    sweep(rank, [&](DType dtype, int64_t T, int64_t F, const Tensor& s) {
      const Tensor h = rank.normal({T, F}, dtype, "h", 2), dy = rank.normal({T, F}, dtype, "dy");
      const Tensor y = rank.poisoned({T, F}, dtype), dh = rank.poisoned({T, F}, dtype);
      const Tensor ds = s.defined() ? rank.poisoned({T}, s.dtype()) : Tensor();
      kernels::gelu_forward(rank.stream, y, h, s, {}, kind);
      kernels::gelu_backward(rank.stream, dh, ds, dy, h, s, {}, kind);
      const auto in = values(h), g = values(dy);
      std::vector<double> expected, slope, expected_ds(static_cast<size_t>(T));
      for (size_t i = 0; i < in.size(); ++i) {
        const int64_t t = static_cast<int64_t>(i) / F;
        expected.push_back(gelu(in[i], kind) * weight_of(s, t));
        slope.push_back(g[i] * weight_of(s, t) * (gelu(in[i] + 1e-6, kind) - gelu(in[i] - 1e-6, kind)) / 2e-6);
        expected_ds[static_cast<size_t>(t)] += g[i] * gelu(in[i], kind);
      }
      EXPECT_TRUE(close(values(y), expected, tolerance(dtype), tolerance(dtype)));
      EXPECT_TRUE(close(values(dh), slope, std::max(1e-8, tolerance(dtype)), tolerance(dtype)));
      if (ds.defined()) {
        EXPECT_TRUE(close(values(ds), expected_ds, tolerance(s.dtype()) * 30, tolerance(s.dtype())));
      }
    });
}

TEST(Geglu, AgreesWithTheFormulaAndItsSlope) {
  Rank rank;
  for (const GeluKind kind : {GeluKind::exact, GeluKind::tanh})
    sweep(rank, [&](DType dtype, int64_t T, int64_t F, const Tensor& s) {
      const Tensor h = rank.normal({T, 2 * F}, dtype, "h", 2), dy = rank.normal({T, F}, dtype, "dy");
      const Tensor y = rank.poisoned({T, F}, dtype), dh = rank.poisoned({T, 2 * F}, dtype);
      const Tensor ds = s.defined() ? rank.poisoned({T}, s.dtype()) : Tensor();
      kernels::geglu_forward(rank.stream, y, h, s, {}, kind);
      kernels::geglu_backward(rank.stream, dh, ds, dy, h, s, {}, kind);
      const auto in = values(h), g = values(dy);
      std::vector<double> expected, slope(in.size()), expected_ds(static_cast<size_t>(T));
      for (int64_t t = 0; t < T; ++t)
        for (int64_t f = 0; f < F; ++f) {
          const auto at_gate = static_cast<size_t>(t * 2 * F + f), at_up = at_gate + static_cast<size_t>(F);
          const double gate = in[at_gate], up = in[at_up], d = g[static_cast<size_t>(t * F + f)];
          expected.push_back(gelu(gate, kind) * up * weight_of(s, t));
          slope[at_gate] = d * weight_of(s, t) * up * (gelu(gate + 1e-6, kind) - gelu(gate - 1e-6, kind)) / 2e-6;
          slope[at_up] = d * weight_of(s, t) * gelu(gate, kind);
          expected_ds[static_cast<size_t>(t)] += d * gelu(gate, kind) * up;
        }
      EXPECT_TRUE(close(values(y), expected, tolerance(dtype), tolerance(dtype)));
      EXPECT_TRUE(close(values(dh), slope, std::max(1e-8, tolerance(dtype)), tolerance(dtype)));
      if (ds.defined()) {
        EXPECT_TRUE(close(values(ds), expected_ds, tolerance(s.dtype()) * 30, tolerance(s.dtype())));
      }
    });
}

// The activation of gpt-oss' experts by its formula, and other parameters; inputs are on both sides of every bound.
TEST(ClampedSwiglu, AgreesWithTheFormulaAndItsSlope) {
  Rank rank;
  for (const SwigluForm& form : {SwigluForm{7, 1.702, 1}, SwigluForm{0.5, 1, 0}, SwigluForm{0, 1.702, -0.25}})
    sweep(rank, [&](DType dtype, int64_t T, int64_t F, const Tensor& s) {
      const Tensor h = rank.normal({T, 2 * F}, dtype, "h", 5), dy = rank.normal({T, F}, dtype, "dy");
      const Tensor y = rank.poisoned({T, F}, dtype), dh = rank.poisoned({T, 2 * F}, dtype);
      const Tensor ds = s.defined() ? rank.poisoned({T}, s.dtype()) : Tensor();
      kernels::clamped_swiglu_forward(rank.stream, y, h, s, {}, form);
      kernels::clamped_swiglu_backward(rank.stream, dh, ds, dy, h, s, {}, form);
      const double most = form.clamp > 0 ? form.clamp : 1e30;
      const auto in = values(h), g = values(dy);
      std::vector<double> expected, slope(in.size()), expected_ds(static_cast<size_t>(T));
      for (int64_t t = 0; t < T; ++t)
        for (int64_t f = 0; f < F; ++f) {
          const auto at_gate = static_cast<size_t>(t * 2 * F + f), at_up = at_gate + static_cast<size_t>(F);
          const double gate = std::min(in[at_gate], most), up = std::clamp(in[at_up], -most, most);
          const double p = sigmoid(form.scale * gate), d = g[static_cast<size_t>(t * F + f)] * weight_of(s, t);
          expected.push_back(gate * p * (up + form.offset) * weight_of(s, t));
          slope[at_gate] = in[at_gate] > most ? 0 : d * (up + form.offset) * (p + form.scale * gate * p * (1 - p));
          slope[at_up] = std::abs(in[at_up]) > most ? 0 : d * gate * p;
          expected_ds[static_cast<size_t>(t)] += g[static_cast<size_t>(t * F + f)] * gate * p * (up + form.offset);
        }
      EXPECT_TRUE(close(values(y), expected, tolerance(dtype), tolerance(dtype)));
      EXPECT_TRUE(close(values(dh), slope, tolerance(dtype), tolerance(dtype)));
      if (ds.defined()) {
        EXPECT_TRUE(close(values(ds), expected_ds, tolerance(s.dtype()) * 100, tolerance(s.dtype())));
      }
    });
}

// As with torch.clamp, the slope at the bound itself is that of the inside.
TEST(ClampedSwiglu, SlopeAtTheBoundIsThatOfTheInside) {
  Rank rank;
  const Tensor h = rank.tensor<float>({1, 6}, {2, 2, 2.5F, 2, -2, -2.5F}), dh = rank.poisoned({1, 6}, DType::f32);
  kernels::clamped_swiglu_backward(rank.stream, dh, {}, rank.tensor<float>({1, 3}, {1, 1, 1}), h, {}, {}, {2, 1, 0});
  const auto slope = values(dh);
  EXPECT_NE(slope[0], 0);
  EXPECT_NE(slope[1], 0);
  EXPECT_EQ(slope[2], 0) << "beyond the gate's";
  EXPECT_NE(slope[3], 0);
  EXPECT_NE(slope[4], 0);
  EXPECT_EQ(slope[5], 0) << "beyond the linear half's";
}

TEST(SquaredRelu, AgreesWithTheFormulaAndItsSlope) {
  Rank rank;
  sweep(rank, [&](DType dtype, int64_t T, int64_t F, const Tensor& s) {
    const Tensor h = rank.normal({T, F}, dtype, "h", 2), dy = rank.normal({T, F}, dtype, "dy");
    const Tensor y = rank.poisoned({T, F}, dtype), dh = rank.poisoned({T, F}, dtype);
    const Tensor ds = s.defined() ? rank.poisoned({T}, s.dtype()) : Tensor();
    kernels::squared_relu_forward(rank.stream, y, h, s, {});
    kernels::squared_relu_backward(rank.stream, dh, ds, dy, h, s, {});
    const auto in = values(h), g = values(dy);
    std::vector<double> expected, slope, expected_ds(static_cast<size_t>(T));
    for (size_t i = 0; i < in.size(); ++i) {
      const auto t = static_cast<int64_t>(i) / F;
      const double positive = std::max(in[i], 0.0);
      expected.push_back(positive * positive * weight_of(s, t));
      slope.push_back(2 * g[i] * weight_of(s, t) * positive);
      expected_ds[static_cast<size_t>(t)] += g[i] * positive * positive;
    }
    EXPECT_TRUE(close(values(y), expected, tolerance(dtype), tolerance(dtype)));
    EXPECT_TRUE(close(values(dh), slope, tolerance(dtype), tolerance(dtype)));
    if (ds.defined()) {
      EXPECT_TRUE(close(values(ds), expected_ds, tolerance(s.dtype()) * 100, tolerance(s.dtype())));
    }
  });
}

TEST(SquaredReglu, AgreesWithTheFormulaAndItsSlope) {
  Rank rank;
  sweep(rank, [&](DType dtype, int64_t T, int64_t F, const Tensor& s) {
    const Tensor h = rank.normal({T, 2 * F}, dtype, "h", 2), dy = rank.normal({T, F}, dtype, "dy");
    const Tensor y = rank.poisoned({T, F}, dtype), dh = rank.poisoned({T, 2 * F}, dtype);
    const Tensor ds = s.defined() ? rank.poisoned({T}, s.dtype()) : Tensor();
    kernels::squared_reglu_forward(rank.stream, y, h, s, {});
    kernels::squared_reglu_backward(rank.stream, dh, ds, dy, h, s, {});
    const auto in = values(h), g = values(dy);
    std::vector<double> expected, slope(in.size()), expected_ds(static_cast<size_t>(T));
    for (int64_t t = 0; t < T; ++t)
      for (int64_t f = 0; f < F; ++f) {
        const auto at_gate = static_cast<size_t>(t * 2 * F + f), at_up = at_gate + static_cast<size_t>(F);
        const double gate = std::max(in[at_gate], 0.0), up = in[at_up], d = g[static_cast<size_t>(t * F + f)];
        expected.push_back(gate * gate * up * weight_of(s, t));
        slope[at_gate] = 2 * d * weight_of(s, t) * up * gate;
        slope[at_up] = d * weight_of(s, t) * gate * gate;
        expected_ds[static_cast<size_t>(t)] += d * gate * gate * up;
      }
    EXPECT_TRUE(close(values(y), expected, tolerance(dtype), tolerance(dtype)));
    EXPECT_TRUE(close(values(dh), slope, tolerance(dtype), tolerance(dtype)));
    if (ds.defined()) {
      EXPECT_TRUE(close(values(ds), expected_ds, tolerance(s.dtype()) * 200, tolerance(s.dtype())));
    }
  });
}

TEST(Silu, AgreesWithTheFormulaAndItsSlope) {
  Rank rank;
  sweep(rank, [&](DType dtype, int64_t T, int64_t F, const Tensor& s) {
    const Tensor h = rank.normal({T, F}, dtype, "h", 2), dy = rank.normal({T, F}, dtype, "dy");
    const Tensor y = rank.poisoned({T, F}, dtype), dh = rank.poisoned({T, F}, dtype);
    const Tensor ds = s.defined() ? rank.poisoned({T}, s.dtype()) : Tensor();
    kernels::silu_forward(rank.stream, y, h, s, {});
    kernels::silu_backward(rank.stream, dh, ds, dy, h, s, {});
    const auto in = values(h), g = values(dy);
    std::vector<double> expected, slope, expected_ds(static_cast<size_t>(T));
    for (size_t i = 0; i < in.size(); ++i) {
      const auto t = static_cast<int64_t>(i) / F;
      const double sigmoid = 1 / (1 + std::exp(-in[i]));
      expected.push_back(in[i] * sigmoid * weight_of(s, t));
      slope.push_back(g[i] * weight_of(s, t) * sigmoid * (1 + in[i] * (1 - sigmoid)));
      expected_ds[static_cast<size_t>(t)] += g[i] * in[i] * sigmoid;
    }
    EXPECT_TRUE(close(values(y), expected, tolerance(dtype), tolerance(dtype)));
    EXPECT_TRUE(close(values(dh), slope, tolerance(dtype), tolerance(dtype)));
    if (ds.defined()) {
      EXPECT_TRUE(close(values(ds), expected_ds, tolerance(s.dtype()) * 100, tolerance(s.dtype())));
    }
  });
}

// Groups out of order, one of them empty, with rows between them that hold NaN.
struct Pool {
  explicit Pool(Rank& rank)
      : groups{rank.tensor<int64_t>({4}, {7, 0, 3, 3}), rank.tensor<int64_t>({4}, {2, 1, 0, 2})},
        h(rank.normal({10, 6}, DType::f32, "h")),
        dy(rank.normal({10, 3}, DType::f32, "dy")),
        s(rank.normal({10}, DType::f32, "s")) {
    for (const int64_t t : {1, 2, 5, 6, 9}) {
      std::fill_n(h.data<float>() + t * 6, 6, std::nanf(""));
      std::fill_n(dy.data<float>() + t * 3, 3, std::nanf(""));
      s.data<float>()[t] = std::nanf("");
    }
  }
  RowGroups groups;
  Tensor h, dy, s;
  std::vector<int64_t> inside = {0, 3, 4, 7, 8};
};

// Rows inside the groups equal those of `all`, which was computed without groups; the others must keep their poison.
void expect_only(const Pool& pool, const Tensor& some, const Tensor& all) {
  const auto got = values(some), full = values(all);
  const size_t width = got.size() / 10;
  for (size_t i = 0; i < got.size(); ++i) {
    const bool inside = std::ranges::count(pool.inside, static_cast<int64_t>(i / width)) > 0;
    if (inside)
      EXPECT_EQ(got[i], full[i]) << "element " << i;
    else
      EXPECT_TRUE(std::isnan(got[i])) << "element " << i;
  }
}

TEST(Activation, RowsOutsideTheGroupsAreNotTouched) {
  for (const int threads : {1, 3}) {
    Rank rank(threads);
    const Pool pool(rank);
    const auto run = [&](const RowGroups& groups) {
      std::vector<Tensor> out;
      for (const Shape& shape : {Shape{10, 3}, Shape{10, 6}, Shape{10}, Shape{10, 6}, Shape{10, 6}, Shape{10}})
        out.push_back(rank.poisoned(shape, DType::f32));
      const Tensor wide = rank.normal({10, 6}, DType::f32, "wide");
      kernels::swiglu_forward(rank.stream, out[0], pool.h, pool.s, groups);
      kernels::swiglu_backward(rank.stream, out[1], out[2], pool.dy, pool.h, pool.s, groups);
      kernels::gelu_forward(rank.stream, out[3], pool.h, pool.s, groups, GeluKind::tanh);
      kernels::gelu_backward(rank.stream, out[4], out[5], wide, pool.h, pool.s, groups, GeluKind::exact);
      return out;
    };
    const auto some = run(pool.groups), all = run({});
    for (size_t i = 0; i < some.size(); ++i) {
      SCOPED_TRACE(i);
      expect_only(pool, some[i], all[i]);
    }
  }
}

TEST(Activation, CostsFollowTheExpectedRows) {
  ThreadPool pool(1);
  Stream meta({Device::Kind::meta}, Arena::meta(), pool);
  const Tensor h = meta.empty({100, 8}, DType::f32), y = meta.empty({100, 4}, DType::f32);
  const RowGroups groups{meta.empty({4}, DType::i64), meta.empty({4}, DType::i64), {}, {}, 25};
  const auto cost = [&](const RowGroups& within) {
    meta.reset_costs();
    kernels::swiglu_forward(meta, y, h, {}, within);
    return meta.costs().at("other").at("swiglu_forward");
  };
  EXPECT_EQ(cost({}).flops, 15.0 * 100 * 4);
  EXPECT_EQ(cost({}).bytes, 4.0 * 100 * (8 + 4));
  EXPECT_EQ(cost(groups).flops, 15.0 * 25 * 4);
  EXPECT_EQ(cost(groups).bytes, 4.0 * 25 * (8 + 4));
}

TEST(Activation, AcceptsGroupsWithoutRows) {
  Rank rank;
  const Tensor none = rank.stream.zeros({3}, DType::i64), y = rank.poisoned({4, 2}, DType::f32);
  kernels::swiglu_forward(rank.stream, y, rank.normal({4, 4}, DType::f32, "h"), {}, {none, none});
  for (const double value : values(y)) EXPECT_TRUE(std::isnan(value));
}

TEST(Activation, HasTheSameBitsOnAnyNumberOfThreads) {
  const auto run = [](int threads) {
    Rank rank(threads);
    const Tensor h = rank.normal({70, 2 * 515}, DType::f32, "h"), dy = rank.normal({70, 515}, DType::f32, "dy");
    const Tensor s = rank.normal({70}, DType::f32, "s");
    const Tensor dh = rank.poisoned(h.shape(), DType::f32), ds = rank.poisoned({70}, DType::f32);
    kernels::swiglu_backward(rank.stream, dh, ds, dy, h, s, {});
    auto all = values(dh);
    std::ranges::copy(values(ds), std::back_inserter(all));
    return all;
  };
  EXPECT_EQ(run(1), run(3));
}

}  // namespace
}  // namespace witan
