// Gated DeltaNet's ops against a recurrence in float64, token by token, and against differences.
#include "witan/ops/linear_attention/gated_delta.h"

#include <gmock/gmock.h>

#include "ops/linear_attention/documents.h"
#include "support/gradcheck.h"
#include "support/message_of.h"

namespace witan {
namespace {

using kernels::DeltaHeads;
using testing::gradcheck;
using testing::ids_of;
using testing::Rank;
using testing::values;

// The inputs of a layer's rule: queries, keys and values side by side, decays below 1, of heads or of each of their
// channels, and strengths between 0 and 1.
struct Inputs {
  Inputs(Rank& rank, int64_t B, int64_t S, const DeltaHeads& of, DType dtype = DType::f64, bool of_channels = false)
      : heads(of),
        qkv(rank.normal({B, S, of.channels()}, dtype, "qkv")),
        g(rank.normal({B, S, of.values * (of_channels ? of.key_dim : 1)}, accumulator(dtype), "g")),
        beta(rank.normal({B, S, of.values}, accumulator(dtype), "beta")) {
    dispatch_floating(g.dtype(), [&]<class A>() {
      for (A& x : g.span<A>()) x = A(-std::log1p(std::exp(static_cast<double>(x))) / 4);
      for (A& x : beta.span<A>()) x = A(1 / (1 + std::exp(-static_cast<double>(x))));
    });
  }

  DeltaHeads heads;
  Tensor qkv, g, beta;
};

constexpr DeltaHeads kHeads{.keys = 2, .values = 4, .key_dim = 5, .value_dim = 3};

// o of the recurrence, as the header of kernels/linear_attention/gated_delta.h has it.
std::vector<double> recurrence(const Inputs& in, const Tensor& ids) {
  const auto qkv = values(in.qkv), g = values(in.g), beta = values(in.beta);
  const DeltaHeads& heads = in.heads;
  const int64_t B = in.qkv.size(0), S = in.qkv.size(1), dk = heads.key_dim, dv = heads.value_dim;
  std::vector<double> o(static_cast<size_t>(B * S * heads.value_channels()));
  const auto unit = [&](const double* x, double factor) {
    std::vector<double> y(x, x + dk);
    double squares = kernels::kDeltaNormEps;
    for (const double e : y) squares += e * e;
    for (double& e : y) e *= factor / std::sqrt(squares);
    return y;
  };
  for (int64_t b = 0; b < B; ++b)
    for (int64_t h = 0; h < heads.values; ++h) {
      std::vector<double> state(static_cast<size_t>(dk * dv));
      for (int64_t t = 0; t < S; ++t) {
        const int64_t at = b * S + t, group = h / (heads.values / heads.keys);
        if (t > 0 && ids.defined() && ids.data<int32_t>()[at] != ids.data<int32_t>()[at - 1])
          std::ranges::fill(state, 0.0);
        const double* const row = qkv.data() + at * heads.channels();
        const auto q = unit(row + group * dk, 1 / std::sqrt(static_cast<double>(dk))),
                   k = unit(row + heads.key_channels() + group * dk, 1);
        const double* const v = row + 2 * heads.key_channels() + h * dv;
        const auto gate = static_cast<size_t>(at * heads.values + h);
        const size_t decays = g.size() / beta.size();
        for (size_t at_state = 0; at_state < state.size(); ++at_state)
          state[at_state] *= std::exp(g[gate * decays + at_state / static_cast<size_t>(dv) % decays]);
        for (int64_t e = 0; e < dv; ++e) {
          double held = 0, out = 0;
          for (int64_t d = 0; d < dk; ++d) held += state[static_cast<size_t>(d * dv + e)] * k[static_cast<size_t>(d)];
          for (int64_t d = 0; d < dk; ++d) {
            double& s = state[static_cast<size_t>(d * dv + e)];
            s += k[static_cast<size_t>(d)] * beta[gate] * (v[e] - held);
            out += s * q[static_cast<size_t>(d)];
          }
          o[static_cast<size_t>((at * heads.values + h) * dv + e)] = out;
        }
      }
    }
  return o;
}

std::vector<double> rule_of(Rank& rank, const Inputs& in, const Tensor& ids) {
  Tape off(rank.stream, Tape::Mode::off);
  const ops::DeltaGates gates{off.constant(in.g), off.constant(in.beta)};
  return values(ops::gated_delta_rule(off, off.constant(in.qkv), gates, ids, in.heads).value());
}

TEST(GatedDeltaRule, ChunksAreTheRecurrence) {
  Rank rank;
  for (const bool of_channels : {false, true})
    for (const auto& lengths : std::vector<std::vector<int64_t>>{{1}, {64}, {65}, {150}, {3, 70, 1, 128, 5}}) {
      SCOPED_TRACE(lengths.front());
      const Tensor ids = ids_of(rank, 2, lengths);
      const Inputs in(rank, 2, ids.size(1), kHeads, DType::f64, of_channels);
      EXPECT_TRUE(testing::close(rule_of(rank, in, ids), recurrence(in, ids), 1e-12, 1e-12));
      EXPECT_TRUE(testing::close(rule_of(rank, in, {}), recurrence(in, {}), 1e-12, 1e-12)) << "one document";
    }
}

TEST(GatedDeltaRule, NarrowDtypesAgree) {
  Rank rank;
  const Tensor ids = ids_of(rank, 1, {70, 30});
  for (const bool of_channels : {false, true})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Inputs in(rank, 1, 100, kHeads, dtype, of_channels);
      const double tolerance = dtype == DType::f32 ? 1e-5 : 1e-2;
      EXPECT_TRUE(testing::close(rule_of(rank, in, ids), recurrence(in, ids), tolerance, tolerance)) << dtype;
    }
}

TEST(GatedDeltaRule, GradientsMatchDifferences) {
  Rank rank;
  for (const bool of_channels : {false, true})
    for (const auto& lengths : std::vector<std::vector<int64_t>>{{3, 1, 4}, {67}}) {
      const Tensor ids = ids_of(rank, 1, lengths);
      const DeltaHeads heads{.keys = 1, .values = 2, .key_dim = 2, .value_dim = 3};
      const Inputs in(rank, 1, ids.size(1), heads, DType::f64, of_channels);
      gradcheck(rank, "gated_delta_rule",
                [&](Tape& tape, const std::vector<Var>& x) {
                  return std::vector{ops::gated_delta_rule(tape, x[0], {x[1], x[2]}, ids, heads)};
                },
                {in.qkv, in.g, in.beta});
    }
}

// The bits of a document's output and gradients, alone and between others.
TEST(GatedDeltaRule, PackingChangesNoBitOfADocument) {
  Rank rank;
  const std::vector<int64_t> lengths = {3, 130, 70};
  const Tensor ids = ids_of(rank, 1, lengths);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Inputs packed(rank, 1, ids.size(1), kHeads, dtype);
    const auto run = [&](const Inputs& in, const Tensor& of) {
      Tape tape(rank.stream);
      const Var qkv = tape.input(in.qkv), g = tape.input(in.g), beta = tape.input(in.beta);
      const Var o = ops::gated_delta_rule(tape, qkv, {g, beta}, of, kHeads);
      tape.backward({{o, o.value()}});
      return std::vector{o.value(), tape.gradient(qkv), tape.gradient(g), tape.gradient(beta)};
    };
    const std::vector<Tensor> together = run(packed, ids);
    for (int64_t i = 0, begin = 0; i < 3; begin += lengths[static_cast<size_t>(i)], ++i) {
      Inputs alone = packed;
      const auto part = [&](const Tensor& x) { return x.narrow(1, begin, lengths[static_cast<size_t>(i)]); };
      for (Tensor* x : {&alone.qkv, &alone.g, &alone.beta}) *x = part(*x);
      const std::vector<Tensor> single = run(alone, {});
      for (size_t k = 0; k < together.size(); ++k)
        EXPECT_EQ(values(single[k]), values(part(together[k]))) << dtype << ", document " << i << ", tensor " << k;
    }
  }
}

TEST(ShortConvolution, GradientsMatchDifferences) {
  Rank rank;
  const Tensor ids = ids_of(rank, 2, {3, 1, 4});
  for (const int64_t W : {2, 4}) {
    std::vector<Tensor> in = {rank.normal({2, 8, 3}, DType::f64, "x"), rank.normal({2, W}, DType::f64, "w"),
                              rank.normal({1, W}, DType::f64, "behind")};
    gradcheck(
        rank, "short_convolution",
        [&](Tape& tape, const std::vector<Var>& x) {
          return std::vector{ops::short_convolution(tape, x[0], {x[1], x[2]}, {}, ids)};
        },
        in);
    in.push_back(rank.normal({2}, DType::f64, "bias"));
    in.push_back(rank.normal({1}, DType::f64, "bias behind"));
    gradcheck(
        rank, "short_convolution with biases",
        [&](Tape& tape, const std::vector<Var>& x) {
          return std::vector{ops::short_convolution(tape, x[0], {x[1], x[2]}, {x[3], x[4]}, ids)};
        },
        in);
  }
}

TEST(ShortConvolution, SeesTokensOfItsDocument) {
  Rank rank;
  Tape off(rank.stream, Tape::Mode::off);
  const Var x = off.constant(rank.tensor<double>({1, 4, 1}, {1, 2, 4, 8})),
            w = off.constant(rank.tensor<double>({1, 3}, {100, 10, 1})),
            bias = off.constant(rank.tensor<double>({1}, {1000}));
  const auto silu = [](double u) { return u / (1 + std::exp(-u)); };
  const auto y = [&](const std::vector<Var>& biases) {
    return values(ops::short_convolution(off, x, {w}, biases, ids_of(rank, 1, {3, 1})).value());
  };
  EXPECT_TRUE(testing::close(y({}), {silu(1), silu(12), silu(124), silu(8)}, 1e-12, 1e-12));
  EXPECT_TRUE(testing::close(y({bias}), {silu(1001), silu(1012), silu(1124), silu(1008)}, 1e-12, 1e-12));
}

TEST(DeltaGates, GradientsMatchDifferences) {
  Rank rank;
  for (const int64_t decays : {4, 12})  // of heads, and of each of their channels
    gradcheck(rank, "delta_gates",
              [](Tape& tape, const std::vector<Var>& in) {
                const auto [g, beta] = ops::delta_gates(tape, in[0], in[1], in[2], in[3]);
                return std::vector{g, beta};
              },
              {rank.normal({2, 3, decays}, DType::f64, "a"), rank.normal({2, 3, 4}, DType::f64, "b"),
               rank.normal({4}, DType::f64, "A"), rank.normal({decays}, DType::f64, "bias")});
}

TEST(DeltaGates, LargeInputsDoNotOverflow) {
  Rank rank;
  Tape off(rank.stream, Tape::Mode::off);
  const Var a = off.constant(rank.tensor<float>({1, 2}, {500, -500})),
            zero = off.constant(rank.stream.zeros({2}, DType::f32));
  const auto [g, beta] = ops::delta_gates(off, a, a, zero, zero);
  EXPECT_EQ(values(g.value()), (std::vector<double>{-500, 0}));
  EXPECT_EQ(values(beta.value()), (std::vector<double>{1, 0}));
}

TEST(GatedRmsNorm, GradientsMatchDifferences) {
  Rank rank;
  gradcheck(rank, "gated_rmsnorm",
            [](Tape& tape, const std::vector<Var>& in) {
              return std::vector{ops::gated_rmsnorm(tape, in[0], in[1], in[2], 1e-6)};
            },
            {rank.normal({2, 3, 5}, DType::f64, "x"), rank.normal({2, 3, 5}, DType::f64, "z"),
             rank.normal({5}, DType::f64, "w")});
}

TEST(GatedDeltaRule, ShapesThatDoNotFitAreRefused) {
  Rank rank;
  const Inputs in(rank, 1, 4, kHeads);
  Tape off(rank.stream, Tape::Mode::off);
  const auto refusal = [&](const DeltaHeads& heads, const Tensor& ids) {
    return test::message_of<ShapeError>([&] {
      ops::gated_delta_rule(off, off.constant(in.qkv), {off.constant(in.g), off.constant(in.beta)}, ids, heads);
    });
  };
  EXPECT_EQ(refusal({.keys = 3, .values = 4, .key_dim = 5, .value_dim = 3}, {}),
            "gated_delta_rule: 4 heads of values cannot share 3 heads of keys evenly");
  EXPECT_THAT(refusal({.keys = 2, .values = 4, .key_dim = 5, .value_dim = 4}, {}), ::testing::HasSubstr("[B, S, 36]"));
  EXPECT_THAT(refusal(kHeads, ids_of(rank, 1, {5})), ::testing::HasSubstr("sequence_ids must be"));
}

}  // namespace
}  // namespace witan
