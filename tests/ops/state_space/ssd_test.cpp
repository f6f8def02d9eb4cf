// Mamba-2's ops against a recurrence in float64, token by token, and against differences.
#include "witan/ops/state_space/ssd.h"

#include <gmock/gmock.h>

#include "ops/linear_attention/documents.h"
#include "support/gradcheck.h"
#include "support/message_of.h"

namespace witan {
namespace {

using kernels::SsdHeads;
using testing::gradcheck;
using testing::ids_of;
using testing::Rank;
using testing::values;

constexpr SsdHeads kSsdHeads{.heads = 4, .groups = 2, .head_dim = 3, .state_dim = 5};

// The inputs of a layer's recurrence, with steps above 0 and decays below 1.
struct SsdCase {
  SsdCase(Rank& rank, int64_t B, int64_t S, const SsdHeads& of, DType dtype = DType::f64)
      : heads(of),
        xbc(rank.normal({B, S, of.channels()}, dtype, "xbc")),
        dt(rank.normal({B, S, of.heads}, accumulator(dtype), "dt")),
        a(rank.normal({B, S, of.heads}, accumulator(dtype), "a")),
        D(rank.normal({of.heads}, accumulator(dtype), "D")) {
    dispatch_floating(dt.dtype(), [&]<class A>() {
      for (A& x : dt.span<A>()) x = A(std::log1p(std::exp(static_cast<double>(x))));
      for (A& x : a.span<A>()) x = A(-std::log1p(std::exp(static_cast<double>(x))) / 4);
    });
  }

  SsdHeads heads;
  Tensor xbc, dt, a, D;
};

// y of the recurrence, as the header of kernels/state_space/ssd.h has it.
std::vector<double> ssd_recurrence(const SsdCase& in, const Tensor& ids) {
  const auto xbc = values(in.xbc), dt = values(in.dt), a = values(in.a), D = values(in.D);
  const SsdHeads& heads = in.heads;
  const int64_t B = in.xbc.size(0), S = in.xbc.size(1), P = heads.head_dim, N = heads.state_dim;
  std::vector<double> y(static_cast<size_t>(B * S * heads.inner()));
  for (int64_t b = 0; b < B; ++b)
    for (int64_t h = 0; h < heads.heads; ++h) {
      std::vector<double> state(static_cast<size_t>(N * P));
      for (int64_t t = 0; t < S; ++t) {
        const int64_t at = b * S + t, group = h / (heads.heads / heads.groups);
        if (t > 0 && ids.defined() && ids.data<int32_t>()[at] != ids.data<int32_t>()[at - 1])
          std::ranges::fill(state, 0.0);
        const double* const x = xbc.data() + at * heads.channels() + h * P;
        const double* const of_b = xbc.data() + at * heads.channels() + heads.inner() + group * N;
        const double* const of_c = of_b + heads.of_groups();
        const auto gate = static_cast<size_t>(at * heads.heads + h);
        for (int64_t p = 0; p < P; ++p) {
          double out = D[static_cast<size_t>(h)] * x[p];
          for (int64_t n = 0; n < N; ++n) {
            double& s = state[static_cast<size_t>(n * P + p)];
            s = std::exp(a[gate]) * s + dt[gate] * of_b[n] * x[p];
            out += s * of_c[n];
          }
          y[static_cast<size_t>((at * heads.heads + h) * P + p)] = out;
        }
      }
    }
  return y;
}

std::vector<double> ssd_of(Rank& rank, const SsdCase& in, const Tensor& ids) {
  Tape off(rank.stream, Tape::Mode::off);
  const ops::SsdGates gates{off.constant(in.dt), off.constant(in.a)};
  return values(ops::ssd(off, off.constant(in.xbc), gates, off.constant(in.D), ids, in.heads).value());
}

TEST(Ssd, ChunksAreTheRecurrence) {
  Rank rank;
  for (const auto& lengths : std::vector<std::vector<int64_t>>{{1}, {64}, {65}, {150}, {3, 70, 1, 128, 5}}) {
    SCOPED_TRACE(lengths.front());
    const Tensor ids = ids_of(rank, 2, lengths);
    const SsdCase in(rank, 2, ids.size(1), kSsdHeads);
    EXPECT_TRUE(testing::close(ssd_of(rank, in, ids), ssd_recurrence(in, ids), 1e-12, 1e-12));
    EXPECT_TRUE(testing::close(ssd_of(rank, in, {}), ssd_recurrence(in, {}), 1e-12, 1e-12)) << "one document";
  }
}

TEST(Ssd, NarrowDtypesAgree) {
  Rank rank;
  const Tensor ids = ids_of(rank, 1, {70, 30});
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const SsdCase in(rank, 1, 100, kSsdHeads, dtype);
    const double tolerance = dtype == DType::f32 ? 1e-5 : 1e-2;
    EXPECT_TRUE(testing::close(ssd_of(rank, in, ids), ssd_recurrence(in, ids), tolerance, tolerance)) << dtype;
  }
}

TEST(Ssd, GradientsMatchDifferences) {
  Rank rank;
  for (const auto& lengths : std::vector<std::vector<int64_t>>{{3, 1, 4}, {67}}) {
    const Tensor ids = ids_of(rank, 1, lengths);
    const SsdHeads heads{.heads = 2, .groups = 1, .head_dim = 2, .state_dim = 3};
    const SsdCase in(rank, 1, ids.size(1), heads);
    gradcheck(rank, "ssd",
              [&](Tape& tape, const std::vector<Var>& x) {
                return std::vector{ops::ssd(tape, x[0], {x[1], x[2]}, x[3], ids, heads)};
              },
              {in.xbc, in.dt, in.a, in.D});
  }
}

// The bits of a document's output and gradients, alone and between others.
TEST(Ssd, PackingChangesNoBitOfADocument) {
  Rank rank;
  const std::vector<int64_t> lengths = {3, 130, 70};
  const Tensor ids = ids_of(rank, 1, lengths);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const SsdCase packed(rank, 1, ids.size(1), kSsdHeads, dtype);
    const auto run = [&](const SsdCase& in, const Tensor& of) {
      Tape tape(rank.stream);
      const Var xbc = tape.input(in.xbc), dt = tape.input(in.dt), a = tape.input(in.a);
      const Var y = ops::ssd(tape, xbc, {dt, a}, tape.constant(in.D), of, kSsdHeads);
      tape.backward({{y, y.value()}});
      return std::vector{y.value(), tape.gradient(xbc), tape.gradient(dt), tape.gradient(a)};
    };
    const std::vector<Tensor> together = run(packed, ids);
    for (int64_t i = 0, begin = 0; i < 3; begin += lengths[static_cast<size_t>(i)], ++i) {
      SsdCase alone = packed;
      const auto part = [&](const Tensor& x) { return x.narrow(1, begin, lengths[static_cast<size_t>(i)]); };
      for (Tensor* x : {&alone.xbc, &alone.dt, &alone.a}) *x = part(*x);
      const std::vector<Tensor> single = run(alone, {});
      for (size_t k = 0; k < together.size(); ++k)
        EXPECT_EQ(values(single[k]), values(part(together[k]))) << dtype << ", document " << i << ", tensor " << k;
    }
  }
}

TEST(SsdGates, GradientsMatchDifferences) {
  Rank rank;
  for (const double least : {0.0, 0.6})
    gradcheck(rank, "ssd_gates",
              [least](Tape& tape, const std::vector<Var>& in) {
                const auto [dt, a] = ops::ssd_gates(tape, in[0], in[1], in[2], least);
                return std::vector{dt, a};
              },
              {rank.normal({2, 3, 4}, DType::f64, "raw"), rank.normal({4}, DType::f64, "A"),
               rank.normal({4}, DType::f64, "bias")});
}

TEST(SsdGates, StepsHaveALeastAndDoNotOverflow) {
  Rank rank;
  Tape off(rank.stream, Tape::Mode::off);
  const Var raw = off.constant(rank.tensor<float>({1, 2}, {500, -500})),
            zero = off.constant(rank.stream.zeros({2}, DType::f32));
  const auto [dt, a] = ops::ssd_gates(off, raw, zero, zero, 0.25);
  EXPECT_EQ(values(dt.value()), (std::vector<double>{500, 0.25}));
  EXPECT_EQ(values(a.value()), (std::vector<double>{-500, -0.25}));
}

TEST(GatedGroupRmsNorm, GroupsAreNormalisedByThemselves) {
  Rank rank;
  Tape off(rank.stream, Tape::Mode::off);
  const Tensor z = rank.tensor<double>({1, 4}, {1, -2, 0.5, 3}), x = rank.tensor<double>({1, 4}, {4, 1, -3, 2}),
               w = rank.tensor<double>({4}, {1, 2, 3, 4});
  const auto y =
      values(ops::gated_group_rmsnorm(off, off.constant(x), off.constant(z), off.constant(w), 2, 0.125).value());
  std::vector<double> expected;
  for (size_t i = 0; i < 4; ++i) {
    const auto gated = [&](size_t at) { return values(x)[at] * values(z)[at] / (1 + std::exp(-values(z)[at])); };
    const size_t first = i / 2 * 2;
    const double mean = (gated(first) * gated(first) + gated(first + 1) * gated(first + 1)) / 2;
    expected.push_back(gated(i) / std::sqrt(mean + 0.125) * values(w)[i]);
  }
  EXPECT_TRUE(testing::close(y, expected, 1e-12, 1e-12));
}

TEST(GatedGroupRmsNorm, GradientsMatchDifferences) {
  Rank rank;
  for (const int64_t groups : {1, 3})
    gradcheck(rank, "gated_group_rmsnorm",
              [groups](Tape& tape, const std::vector<Var>& in) {
                return std::vector{ops::gated_group_rmsnorm(tape, in[0], in[1], in[2], groups, 1e-6)};
              },
              {rank.normal({2, 3, 6}, DType::f64, "x"), rank.normal({2, 3, 6}, DType::f64, "z"),
               rank.normal({6}, DType::f64, "w")});
}

TEST(Ssd, ShapesThatDoNotFitAreRefused) {
  Rank rank;
  const SsdCase in(rank, 1, 4, kSsdHeads);
  Tape off(rank.stream, Tape::Mode::off);
  const auto refusal = [&](const SsdHeads& heads, const Tensor& ids) {
    return test::message_of<ShapeError>([&] {
      ops::ssd(off, off.constant(in.xbc), {off.constant(in.dt), off.constant(in.a)}, off.constant(in.D), ids, heads);
    });
  };
  EXPECT_EQ(refusal({.heads = 4, .groups = 3, .head_dim = 3, .state_dim = 5}, {}),
            "ssd: 4 heads cannot share 3 groups evenly");
  EXPECT_THAT(refusal({.heads = 4, .groups = 2, .head_dim = 4, .state_dim = 5}, {}),
              ::testing::HasSubstr("[B, S, 36]"));
  EXPECT_THAT(refusal(kSsdHeads, ids_of(rank, 1, {5})), ::testing::HasSubstr("sequence_ids must be"));
}

}  // namespace
}  // namespace witan
