#include "witan/nn/parameter.h"

#include "support/message_of.h"
#include "support/rank.h"

namespace witan {
namespace {

using testing::Rank;
using testing::values;

ParameterSpec normal_spec(const std::string& name, const Shape& shape, double std = 1, DType dtype = DType::f64) {
  return {name, shape, dtype, {Initialization::Kind::normal, std}, true, false};
}

std::vector<double> initial(Rank& rank, const ParameterSpec& spec, uint64_t seed) {
  return values(Parameter(rank.stream, spec, spec.whole(), seed).value());
}

TEST(Parameter, InitialValuesDependOnlyOnSeedNameAndPosition) {
  Rank one(1), three(3);
  const auto spec = normal_spec("layers.0.w", {30, 1000});
  const auto values_now = initial(one, spec, 1);
  EXPECT_EQ(values_now, initial(three, spec, 1)) << "threads";
  EXPECT_NE(values_now, initial(one, spec, 2)) << "the seed";
  EXPECT_NE(values_now, initial(one, normal_spec("layers.1.w", {30, 1000}), 1)) << "the name";
  EXPECT_EQ(values_now, initial(one, normal_spec("layers.0.w", {300, 100}), 1)) << "the position counts, not the shape";
  const Philox rng(1, Philox::stream_of("layers.0.w"));
  for (size_t i = 0; i < values_now.size(); ++i) ASSERT_EQ(values_now[i], rng.normal(i)) << i;
}

ParameterSpec::Part rows(const ParameterSpec& spec, int64_t first, int64_t count) {
  return {rows_of(spec.shape, first, count), spec.shape.with(0, count)};
}

TEST(Parameter, PartsAreSlicesOfTheWhole) {
  Rank rank;
  const auto spec = normal_spec("w", {8, 3, 5});
  const auto whole = initial(rank, spec, 9);
  for (const int64_t begin : {0, 2, 6}) {
    const Parameter part(rank.stream, spec, rows(spec, begin, 2), 9);
    EXPECT_EQ(part.value().shape(), Shape({2, 3, 5}));
    EXPECT_EQ(part.global_shape(), Shape({8, 3, 5}));
    EXPECT_EQ(part.region(), Region(begin * 15, 30));
    EXPECT_EQ(part.elements(), 30);
    EXPECT_EQ(values(part.value()), std::vector<double>(whole.begin() + begin * 15, whole.begin() + (begin + 2) * 15));
  }
}

// Columns, rows, and the gate and up halves of a stack of experts: every part of every division has the whole's values.
TEST(Parameter, DividedDimsAreSlicesOfTheWhole) {
  Rank rank;
  struct Case {
    Shape shape;
    TensorSplit split;
    int experts;
  };
  for (const auto& [shape, split, experts] : std::vector<Case>{{{6, 8}, {.dim = 1}, 1},
                                                               {{12, 5}, {.dim = 0}, 1},
                                                               {{8, 5}, {.dim = 0, .blocks = 2}, 1},
                                                               {{4, 8, 3}, {.dim = 1, .blocks = 2}, 2},
                                                               {{4, 3, 8}, {.dim = 2}, 4}}) {
    ParameterSpec spec = normal_spec("w", shape);
    spec.tensor_split = split;
    spec.expert = experts > 1;
    const auto whole = initial(rank, spec, 9);
    std::vector<int> seen(whole.size());
    for (int expert = 0; expert < experts; ++expert)
      for (const int cutters : {1, 2, 4}) {
        for (int r = 0; r < cutters; ++r) {
          const ParameterSpec::Part part = spec.part(experts, expert, cutters, r);
          const auto found = values(Parameter(rank.stream, spec, part, 9).value());
          EXPECT_EQ(part.shape[split.dim], shape[split.dim] / cutters);
          for (size_t i = 0; i < found.size(); ++i) {
            const auto at = static_cast<size_t>(part.region.global(static_cast<int64_t>(i)));
            ASSERT_EQ(found[i], whole[at]) << shape << " " << i;
            ++seen[at];
          }
        }
      }
    EXPECT_EQ(seen, std::vector<int>(whole.size(), 3)) << shape;
  }
  ParameterSpec halves = normal_spec("w", {8, 5});
  halves.tensor_split = {.dim = 0, .blocks = 2};
  EXPECT_EQ(halves.part(1, 0, 2, 1).region, Region(2 * 5, 2 * 5, 2, 4 * 5)) << "rows 2 and 3 of either half";
  EXPECT_EQ(halves.part(1, 0, 2, 1).shape, Shape({4, 5}));
  EXPECT_EQ(test::message_of<ShapeError>([&] { halves.part(1, 0, 3, 0); }),
            "w: dim 0 of [8, 5] cannot be split into 3 equal parts in each of its 2 blocks");
}

TEST(Parameter, NormalValuesHaveTheirDeviation) {
  Rank rank;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    const auto all = initial(rank, normal_spec("w", {200, 500}, 0.02, dtype), 1234);
    const auto n = static_cast<double>(all.size());
    double mean = 0, square = 0, fourth = 0;
    for (const double value : all) mean += value / n;
    for (const double value : all) {
      square += value * value / n;
      fourth += value * value * value * value / n;
    }
    EXPECT_NEAR(mean, 0, 0.02 * 4 / std::sqrt(n));
    EXPECT_NEAR(std::sqrt(square), 0.02, 0.02 * 4 / std::sqrt(2 * n));
    EXPECT_NEAR(fourth / (square * square), 3, 0.1) << "the tails of a normal distribution";
  }
}

TEST(Parameter, OnesAndZeros) {
  Rank rank;
  for (const auto& [kind, expected] :
       {std::pair{Initialization::Kind::ones, 1.0}, {Initialization::Kind::zeros, 0.0}}) {
    auto spec = normal_spec("w", {70}, 1, DType::bf16);
    spec.init.kind = kind;
    EXPECT_EQ(initial(rank, spec, 1), std::vector<double>(70, expected));
  }
}

// tests/base/numbers/torch_random_test.cpp tests the values; here: which values a parameter takes, and which part a
// rank. Rows that do not divide evenly are divided as evenly as whole rows can be, in order, each once.
TEST(Parameter, UnevenDivisionsAreSlicesOfTheWhole) {
  Rank rank;
  for (const int64_t size : {4, 97, 289}) {
    ParameterSpec spec = normal_spec("w", {size, 3});
    spec.tensor_split = {.dim = 0, .uneven = true};
    const auto whole = initial(rank, spec, 9);
    for (const int cutters : {1, 2, 3, 4}) {
      std::vector<double> joined;
      for (int r = 0; r < cutters; ++r) {
        const ParameterSpec::Part part = spec.part(1, 0, cutters, r);
        EXPECT_GE(part.shape[0], size / cutters);
        EXPECT_LE(part.shape[0], (size + cutters - 1) / cutters);
        const auto found = values(Parameter(rank.stream, spec, part, 9).value());
        joined.insert(joined.end(), found.begin(), found.end());
      }
      EXPECT_EQ(joined, whole) << size << " rows of " << cutters;
    }
  }
}

// The rows in use are initialised as without padding, and so are the parameters drawn after them.
TEST(Parameter, PaddingIsZeroAndDrawsNoRandomNumbers) {
  Rank rank;
  for (const auto kind :
       {Initialization::Kind::normal, Initialization::Kind::torch_normal, Initialization::Kind::torch_uniform}) {
    ParameterSpec bare{.name = "w", .shape = {9, 4}, .dtype = DType::f64, .init = {.kind = kind, .fan_in = 4}};
    bare.tensor_split = {.dim = 0, .uneven = true};
    ParameterSpec padded = bare;
    padded.shape = {13, 4};
    padded.init.padding = 4 * 4;
    const auto after = [&](TorchRandom& random) {
      return values(Parameter(rank.stream, bare, bare.whole(), 1, &random).value());
    };
    TorchRandom random(5);
    std::vector<double> expected = values(Parameter(rank.stream, bare, bare.whole(), 1, &random).value());
    expected.resize(13 * 4, 0);
    const auto next = after(random);
    for (const int ranks : {1, 2, 5}) {
      std::vector<double> joined;
      for (int r = 0; r < ranks; ++r) {
        TorchRandom again(5);
        const auto found = values(Parameter(rank.stream, padded, padded.part(1, 0, ranks, r), 1, &again).value());
        joined.insert(joined.end(), found.begin(), found.end());
        EXPECT_EQ(after(again), next);
      }
      EXPECT_EQ(joined, expected);
    }
    TorchRandom past(5);
    Parameter(rank.stream, padded, padded.whole(), 1, &past);
    TorchRandom skipped(5);
    Parameter later(padded, padded.whole());
    later.draw_past(skipped);
    if (!bare.init.drawn()) continue;
    EXPECT_EQ(after(skipped), next);
  }
}

TEST(Parameter, TorchValuesAreDrawnInOrderAndDividedAmongRanks) {
  Rank rank;
  const auto spec = [](Initialization::Kind kind, const Shape& shape) {
    return ParameterSpec{.name = "w", .shape = shape, .dtype = DType::f64, .init = {.kind = kind, .fan_in = 4}};
  };
  const auto embedding = spec(Initialization::Kind::torch_normal, {5, 7}),
             linear = spec(Initialization::Kind::torch_uniform, {8, 3, 4});
  TorchRandom expected(5), whole(5);
  std::vector<double> first(35), second(96);
  const auto into = [](std::vector<double>& to) {
    return [&](int64_t begin, std::span<const float> from) { std::ranges::copy(from, to.begin() + begin); };
  };
  expected.normal(35, into(first));
  expected.uniform(96, 0.5, into(second));
  EXPECT_EQ(values(Parameter(rank.stream, embedding, embedding.whole(), 1, &whole).value()), first);
  EXPECT_EQ(values(Parameter(rank.stream, linear, linear.whole(), 1, &whole).value()), second);
  for (const int64_t begin : {0, 2, 6}) {
    TorchRandom part(5);
    const Parameter some(rank.stream, embedding, rows(embedding, begin / 2, 2), 1, &part);
    const auto at = first.begin() + begin / 2 * 7;
    EXPECT_EQ(values(some.value()), std::vector<double>(at, at + 14));
    const Parameter experts(rank.stream, linear, rows(linear, begin, 2), 1, &part);
    EXPECT_EQ(values(experts.value()),
              std::vector<double>(second.begin() + begin * 12, second.begin() + (begin + 2) * 12));
  }
}

TEST(Parameter, CountsAsWeightsMemory) {
  Rank rank;
  const Parameter parameter(rank.stream, normal_spec("w", {128, 8}), {{0, 1024}, {128, 8}}, 1);
  EXPECT_EQ(rank.stream.arena().live(MemoryTag::weights), 128 * 8 * 8);
}

TEST(Parameter, RefusesGradientsThatDoNotFit) {
  Rank rank;
  Parameter parameter(rank.stream, normal_spec("w", {4, 6}, 1, DType::bf16), {{6, 12}, {2, 6}}, 1);
  EXPECT_EQ(test::message_of<ShapeError>([&] {
              parameter.bind_gradient(rank.stream.empty({4, 6}, DType::f32));
            }),
            "w: a gradient is [2, 6], floating and contiguous, got float32 [4, 6]");
  EXPECT_THROW(parameter.bind_gradient(rank.stream.empty({2, 6}, DType::i32)), ShapeError);
  EXPECT_THROW(parameter.bind_gradient(rank.stream.empty({6, 2}, DType::f32).transpose(0, 1)), ShapeError);
  parameter.gradient_written = true;
  parameter.bind_gradient(rank.stream.empty({2, 6}, DType::f32));  // float32 gradients of bfloat16 weights
  EXPECT_FALSE(parameter.gradient_written);
}

TEST(Parameter, RefusesPartsOutsideTheWhole) {
  Rank rank;
  EXPECT_EQ(test::message_of<ShapeError>([&] {
              Parameter(rank.stream, normal_spec("w", {4, 6}), {{18, 12}, {2, 6}}, 1);
            }),
            "w: elements [18, 30) of [4, 6] as [2, 6]");
}

TEST(Parameter, ReportsWhenItsGradientIsReady) {
  Rank rank;
  Parameter parameter(rank.stream, normal_spec("w", {2}), {{0, 2}, {2}}, 1);
  parameter.on_gradient_ready();  // without a listener
  std::string heard;
  parameter.gradient_ready = [&](Parameter& p) { heard += p.name(); };
  parameter.on_gradient_ready();
  EXPECT_EQ(heard, "w");
}

}  // namespace
}  // namespace witan
