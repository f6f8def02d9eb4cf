#include "witan/kernels/optimizer/optimizer.h"

#include <bit>
#include <cmath>
#include <limits>

#include "support/optimizer.h"
#include "support/rank.h"

namespace witan {
namespace {

using testing::close;
using testing::Rank;
using testing::values;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor step(Rank& rank, double lr, double scale, double update, double skip = 0) {
  return rank.tensor<double>({kernels::kStepValues}, {lr, scale, update, skip, update + 2, 1});
}
Tensor zeros(Rank& rank, int64_t n, DType dtype) {
  return rank.stream.zeros({n}, dtype);
}

constexpr testing::AdamWSettings kAdam{0.9, 0.95, 1e-8, 0.1};

template <class Tensors>
std::vector<double> weights(const Tensors& t) {
  return t.remainder.defined() ? testing::joined(t.value, t.remainder) : values(t.value);
}

// Three steps of the paper's formula in float64.
struct AdamReference {
  std::vector<double> p, m = std::vector<double>(p.size()), v = m;
  void update(const std::vector<double>& gradient, double lr, double scale, int t, const testing::AdamWSettings& a) {
    for (size_t i = 0; i < p.size(); ++i) {
      const double g = scale * gradient[i];
      m[i] = a.beta1 * m[i] + (1 - a.beta1) * g;
      v[i] = a.beta2 * v[i] + (1 - a.beta2) * g * g;
      const double mean = m[i] / (1 - std::pow(a.beta1, t)), square = v[i] / (1 - std::pow(a.beta2, t));
      p[i] = p[i] * (1 - lr * a.weight_decay) - lr * mean / (std::sqrt(square) + a.eps);
    }
  }
};

void compare_adamw(DType value_dtype, DType gradient_dtype, double tolerance) {
  for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{33}, int64_t{40000}}) {
    Rank rank(2);
    const DType wide = accumulator(value_dtype);
    const Tensor start = rank.normal({n}, value_dtype, "p");
    testing::AdamWTensors t{start, {}, zeros(rank, n, wide), zeros(rank, n, wide), {}};
    if (is_split(value_dtype)) t.remainder = testing::split_into(rank.stream, t.value, rank.normal({n}, wide, "p"));
    AdamReference reference{weights(t)};
    for (int update = 1; update <= 3; ++update) {
      t.gradient = rank.normal({n}, gradient_dtype, std::to_string(update), 0.1);
      testing::adamw(rank.stream, t, step(rank, 0.02, 0.5, update), kAdam);
      reference.update(values(t.gradient), 0.02, 0.5, update, kAdam);
    }
    EXPECT_TRUE(close(weights(t), reference.p, tolerance, tolerance)) << n;
    EXPECT_TRUE(close(values(t.m), reference.m, tolerance, tolerance));
    EXPECT_TRUE(close(values(t.v), reference.v, tolerance, tolerance));
  }
}

TEST(AdamW, FollowsTheFormula) {
  compare_adamw(DType::f64, DType::f64, 1e-14);
  compare_adamw(DType::f32, DType::f32, 1e-6);
  compare_adamw(DType::bf16, DType::f32, 1e-6);
  compare_adamw(DType::bf16, DType::bf16, 1e-6);
  compare_adamw(DType::f16, DType::f32, 1e-6);
}

// Adam's first step without decay has the size lr, whatever the gradient.
TEST(AdamW, TheFirstStepHasTheSizeOfTheLearningRate) {
  Rank rank;
  const Tensor p = rank.tensor<double>({3}, {1, 2, 3});
  testing::adamw(
      rank.stream,
      {p, {}, zeros(rank, 3, DType::f64), zeros(rank, 3, DType::f64), rank.tensor<double>({3}, {5, -1e-3, 70})},
      step(rank, 0.25, 1, 1), {0.9, 0.999, 1e-12, 0});
  EXPECT_TRUE(close(values(p), {0.75, 2.25, 2.75}, 1e-8, 0));
}

// The learning rate is that of parameter group 2; the default slot has another group's.
TEST(Updates, UseTheLearningRateOfTheirGroup) {
  Rank rank;
  std::vector<double> state = {0.5, 1, 1, 0, 3, 1, 0.125, 0.25};
  const Tensor now = rank.tensor<double>({kernels::kStepValues + 2}, state);
  const int64_t rate = kernels::step_value::learning_rate_of(2);
  const Tensor adam = rank.tensor<double>({1}, {1}), sgd = rank.tensor<double>({1}, {1}),
               gradient = rank.tensor<double>({1}, {3});
  testing::adamw(rank.stream, {adam, {}, zeros(rank, 1, DType::f64), zeros(rank, 1, DType::f64), gradient}, now,
                 {0.9, 0.999, 1e-12, 0, rate});
  testing::sgd(rank.stream, {sgd, {}, {}, gradient}, now, {0, 0, rate});
  EXPECT_TRUE(close(values(adam), {0.75}, 1e-8, 0));
  EXPECT_TRUE(close(values(sgd), {0.25}, 1e-12, 0));
}

TEST(AdamW, SmallChangesOfABf16ValueAddUpInItsMaster) {
  Rank rank;
  const testing::AdamWTensors t{rank.tensor<bf16>({1}, {bf16(1.0f)}), zeros(rank, 1, kRemainder),
                                zeros(rank, 1, DType::f32), zeros(rank, 1, DType::f32), rank.tensor<float>({1}, {1})};
  for (int update = 1; update <= 40; ++update)
    testing::adamw(rank.stream, t, step(rank, 1e-3, 1, update), {0.9, 0.95, 1e-8, 0});
  EXPECT_NEAR(weights(t)[0], 0.96, 1e-5);  // each step alone is less than half of bf16's last place
  EXPECT_EQ(t.value.data<bf16>()[0].bits, bf16(0.96f).bits);
}

// A step of size zero keeps all bits, wherever the master lies between two bfloat16 values.
TEST(AdamW, AStepOfSizeZeroKeepsFiniteMasters) {
  Rank rank;
  const Tensor whole = testing::masters_of_every_kind(rank.stream);
  const int64_t n = whole.elements();
  const Tensor value = zeros(rank, n, DType::bf16), rest = testing::split_into(rank.stream, value, whole);
  const Tensor none = zeros(rank, n, DType::f32);
  testing::adamw(rank.stream, {value, rest, none, none, none}, step(rank, 0, 1, 1), {0.9, 0.95, 1e-8, 0});
  const auto after = testing::joined(value, rest);
  for (int64_t i = 0; i < n; ++i) {
    const float before = whole.data<float>()[i], now = static_cast<float>(after[static_cast<size_t>(i)]);
    if (std::isfinite(before))
      EXPECT_EQ(std::bit_cast<uint32_t>(now), std::bit_cast<uint32_t>(before));
    else
      EXPECT_TRUE(std::isnan(now)) << before;
  }
}

// The update of a split weight equals the update of its float32 to the bit: only the bfloat16 value is rounded.
void expect_steps_of_float32(DType dtype, DType of_gradient) {
  Rank rank;
  const int64_t n = 40000;
  const Tensor whole = rank.normal({n}, DType::f32, "p"), value = zeros(rank, n, dtype);
  const auto moments = [&] { return std::array{zeros(rank, n, DType::f32), zeros(rank, n, DType::f32)}; };
  const auto [m, v] = moments();
  const auto [split_m, split_v] = moments();
  const Tensor rest = testing::split_into(rank.stream, value, whole);
  for (int update = 1; update <= 3; ++update) {
    const Tensor gradient = rank.normal({n}, of_gradient, std::to_string(update));
    testing::adamw(rank.stream, {whole, {}, m, v, gradient}, step(rank, 0.02, 0.5, update), kAdam);
    testing::adamw(rank.stream, {value, rest, split_m, split_v, gradient}, step(rank, 0.02, 0.5, update), kAdam);
  }
  EXPECT_EQ(testing::joined(value, rest), values(whole));
  EXPECT_EQ(values(split_m), values(m));
  EXPECT_TRUE(close(values(value), values(whole), 1e-7, 4e-3));
}
TEST(AdamW, SplitMastersHaveTheBitsOfFloat32) {
  expect_steps_of_float32(DType::bf16, DType::bf16);
}
TEST(AdamW, Float16MastersHaveTheBitsOfFloat32) {
  expect_steps_of_float32(DType::f16, DType::f32);
}

TEST(AdamW, ASkippedStepChangesNothing) {
  Rank rank;
  const testing::AdamWTensors t{rank.normal({100}, DType::f32, "p"),
                                {},
                                rank.normal({100}, DType::f32, "m"),
                                rank.normal({100}, DType::f32, "v"),
                                rank.poisoned({100}, DType::f32)};
  const auto before = std::vector{values(t.value), values(t.m), values(t.v)};
  testing::adamw(rank.stream, t, step(rank, 0.1, 1, 1, 1), kAdam);
  EXPECT_EQ((std::vector{values(t.value), values(t.m), values(t.v)}), before);
}

TEST(AdamW, HasTheSameBitsOnAnyNumberOfThreads) {
  std::vector<std::vector<double>> results;
  for (const int threads : {1, 3}) {
    Rank rank(threads);
    const int64_t n = 100003;
    const testing::AdamWTensors t{rank.normal({n}, DType::bf16, "p"), rank.normal({n}, kRemainder, "rest"),
                                  zeros(rank, n, DType::f32), zeros(rank, n, DType::f32),
                                  rank.normal({n}, DType::f32, "g")};
    testing::adamw(rank.stream, t, step(rank, 0.1, 0.3, 1), kAdam);
    results.push_back(weights(t));
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST(Sgd, FollowsTheFormula) {
  for (const double momentum : {0.0, 0.9}) {
    Rank rank;
    const int64_t n = 70;
    testing::SgdTensors t{
        rank.normal({n}, DType::bf16, "p"), {}, momentum == 0 ? Tensor() : zeros(rank, n, DType::f32), {}};
    t.remainder = testing::split_into(rank.stream, t.value, rank.normal({n}, DType::f32, "p"));
    std::vector<double> p = weights(t), b(n);
    for (int update = 1; update <= 3; ++update) {
      t.gradient = rank.normal({n}, DType::f32, std::to_string(update));
      testing::sgd(rank.stream, t, step(rank, 0.1, 0.5, update), {momentum, 0.01});
      const auto g = values(t.gradient);
      for (size_t i = 0; i < p.size(); ++i) {
        b[i] = momentum * b[i] + 0.5 * g[i] + 0.01 * p[i];
        p[i] -= 0.1 * b[i];
      }
    }
    EXPECT_TRUE(close(weights(t), p, 1e-6, 1e-6));
    const auto before = weights(t);
    testing::sgd(rank.stream, t, step(rank, 0.1, 0.5, 4, 1), {momentum, 0.01});
    EXPECT_EQ(weights(t), before);
  }
}

// Tensors of every dtype are compared with the update in float64: `formula` changes p and the state by g, element by
// element.
template <class Kernel, class Args, class Formula>
void compare_with(const Kernel& kernel, const Args& args, int states, const Formula& formula) {
  for (const DType value : {DType::bf16, DType::f32, DType::f64})
    for (const int64_t n : {int64_t{0}, int64_t{33}, int64_t{20000}}) {
      SCOPED_TRACE(cat(value, " ", n));
      Rank rank(2);
      const DType wide = accumulator(value);
      kernels::UpdateItem item{{rank.normal({n}, value, "p"), {}, {}, {}}, 0.1};
      kernels::UpdateTensors& t = item.tensors;
      if (value == DType::bf16) t.remainder = testing::split_into(rank.stream, t.value, rank.normal({n}, wide, "p"));
      for (int s = 0; s < states; ++s) t.state[static_cast<size_t>(s)] = zeros(rank, n, wide);
      std::vector<double> p = weights(t);
      std::vector<std::array<double, 3>> state(p.size());
      for (int update = 1; update <= 3; ++update) {
        t.gradient = rank.normal({n}, update == 2 ? DType::bf16 : wide, std::to_string(update));
        testing::update_with(kernel, rank.stream, {item}, step(rank, 0.02, 0.5, update), args);
        const auto g = values(t.gradient);
        for (size_t i = 0; i < p.size(); ++i) formula(update, 0.5 * g[i], p[i], state[i]);
      }
      const double tolerance = value == DType::f64 ? 1e-12 : 2e-6;
      EXPECT_TRUE(close(weights(t), p, tolerance, tolerance));
      for (size_t s = 0; s < static_cast<size_t>(states); ++s) {
        std::vector<double> expected;
        for (const auto& own : state) expected.push_back(own[s]);
        EXPECT_TRUE(close(values(t.state[s]), expected, tolerance, tolerance)) << s;
      }
      const auto before = weights(t);
      testing::update_with(kernel, rank.stream, {item}, step(rank, 0.02, 0.5, 4, 1), args);
      EXPECT_EQ(weights(t), before) << "a skipped step changes nothing";
    }
}

TEST(Lion, FollowsTheFormula) {
  compare_with(kernels::lion_all, kernels::LionArgs{0.9, 0.99}, 1, [](int, double g, double& p, auto& m) {
    const double c = 0.9 * m[0] + 0.1 * g;
    p -= 0.02 * ((c > 0 ? 1 : c < 0 ? -1 : 0) + 0.1 * p);
    m[0] = 0.99 * m[0] + 0.01 * g;
  });
}

TEST(AdEMAMix, FollowsTheFormula) {
  compare_with(kernels::ademamix_all, kernels::AdEMAMixArgs{0.9, 0.95, 0.999, 5, 1e-8}, 3,
               [](int t, double g, double& p, auto& state) {
                 auto& [m, slow, v] = state;
                 m = 0.9 * m + 0.1 * g;
                 slow = 0.999 * slow + 0.001 * g;
                 v = 0.95 * v + 0.05 * g * g;
                 const double mean = m / (1 - std::pow(0.9, t)), square = v / (1 - std::pow(0.95, t));
                 p -= 0.02 * ((mean + 5 * slow) / (std::sqrt(square) + 1e-8) + 0.1 * p);
               });
}

// Moments in bfloat16 are float32's, rounded to nearest after each update.
TEST(AdamW, MomentsInBfloat16AreRoundedToTheNearest) {
  for (const auto& [m_dtype, v_dtype] : std::vector<std::pair<DType, DType>>{
           {DType::bf16, DType::f32}, {DType::f32, DType::bf16}, {DType::bf16, DType::bf16}}) {
    Rank rank;
    const int64_t n = 5000;
    kernels::UpdateItem item{
        {rank.normal({n}, DType::f32, "p"), {}, {zeros(rank, n, m_dtype), zeros(rank, n, v_dtype)}, {}}, 0.1};
    kernels::UpdateTensors& t = item.tensors;
    const testing::AdamWTensors wide{
        rank.normal({n}, DType::f32, "p"), {}, zeros(rank, n, DType::f32), zeros(rank, n, DType::f32), {}};
    const auto rounded = [](const Tensor& moment, DType dtype) {
      if (dtype == DType::bf16)
        for (float& x : moment.span<float>()) x = static_cast<float>(bf16(x));
    };
    for (int update = 1; update <= 4; ++update) {
      t.gradient = rank.normal({n}, DType::f32, std::to_string(update));
      testing::update_with(kernels::adamw_all, rank.stream, {item}, step(rank, 0.02, 0.5, update),
                           kernels::AdamWArgs{0.9, 0.95, 1e-8});
      testing::AdamWTensors now = wide;
      now.gradient = t.gradient;
      testing::adamw(rank.stream, now, step(rank, 0.02, 0.5, update), kAdam);
      rounded(wide.m, m_dtype);
      rounded(wide.v, v_dtype);
    }
    EXPECT_EQ(values(t.value), values(wide.value));
    EXPECT_EQ(values(t.state[0]), values(wide.m));
    EXPECT_EQ(values(t.state[1]), values(wide.v));
  }
}

TEST(SquareSums, EachPieceBeginsANewChunk) {
  Rank rank;
  const int64_t N = kernels::kChunkElements + 3;
  const Tensor x = rank.normal({2, N}, DType::f32, "x");
  x.data<float>()[0] = x.data<float>()[5] = x.data<float>()[N - 1] = 0;
  const Tensor sums = rank.poisoned({4, 2}, DType::f64);
  kernels::square_sums(rank.stream, sums, x);
  const auto in = values(x);
  std::vector<double> expected;
  for (int64_t piece = 0; piece < 2; ++piece)
    for (const auto& [begin, end] : {std::pair{int64_t{0}, N - 3}, std::pair{N - 3, N}}) {
      double squares = 0, zeros = 0;
      for (int64_t i = piece * N + begin; i < piece * N + end; ++i) {
        squares += in[static_cast<size_t>(i)] * in[static_cast<size_t>(i)];
        zeros += in[static_cast<size_t>(i)] == 0;
      }
      expected.insert(expected.end(), {squares, zeros});
    }
  EXPECT_TRUE(close(values(sums), expected, 0, 1e-13));
}

TEST(SquareSums, HaveTheSameBitsOnAnyNumberOfThreads) {
  std::vector<std::vector<double>> results;
  for (const int threads : {1, 3}) {
    Rank rank(threads);
    const int64_t N = 5 * kernels::kChunkElements + 77;
    const Tensor sums = rank.poisoned({6, 2}, DType::f64);
    kernels::square_sums(rank.stream, sums, rank.normal({1, N}, DType::bf16, "x"));
    results.push_back(values(sums));
    kernels::square_sums(rank.stream, rank.stream.empty({0, 2}, DType::f64), rank.stream.empty({0, 9}, DType::f32));
    kernels::square_sums(rank.stream, rank.stream.empty({0, 2}, DType::f64), rank.stream.empty({1, 0}, DType::f32));
  }
  EXPECT_EQ(results[0], results[1]);
}

// Squares of the largest float32 fit in float64, so no norm of finite gradients overflows.
TEST(SquareSums, HandleLargeAndNonFiniteValues) {
  Rank rank;
  const Tensor sums = rank.poisoned({3, 2}, DType::f64);
  kernels::square_sums(rank.stream, sums, rank.tensor<float>({3, 2}, {3e38f, 3e38f, HUGE_VALF, 0, NAN, 1}));
  EXPECT_NEAR(sums.data<double>()[0] / 1.8e77, 1, 1e-6);
  EXPECT_EQ(sums.data<double>()[2], kInfinity);
  EXPECT_TRUE(std::isnan(sums.data<double>()[4]));
}

TEST(TotalSums, AddsInTheGivenOrder) {
  Rank rank;
  const Tensor sums = rank.tensor<double>({3, 2}, {1, 10, 1e16, 20, -1e16, 30});
  const Tensor total = rank.poisoned({2}, DType::f64);
  kernels::total_sums(rank.stream, total, sums, rank.tensor<int64_t>({3}, {1, 2, 0}));
  EXPECT_EQ(values(total), (std::vector<double>{1, 60}));
  kernels::total_sums(rank.stream, total, sums, rank.tensor<int64_t>({3}, {0, 1, 2}));
  EXPECT_EQ(values(total), (std::vector<double>{0, 60}));
}

TEST(ClipByNorm, ScalesAboveTheLimitAndSkipsNonFiniteNorms) {
  Rank rank;
  const auto clipped = [&](double squares, double limit) {
    const Tensor now = step(rank, 0.1, 7, 5, 1);
    kernels::clip_by_norm(rank.stream, now, rank.tensor<double>({2}, {squares, 0}), limit);
    return values(now);
  };
  EXPECT_EQ(clipped(0.25, 1), (std::vector<double>{0.1, 1, 5, 0, 7, 1}));
  EXPECT_EQ(clipped(16, 1), (std::vector<double>{0.1, 1 / (4 + 1e-6), 5, 0, 7, 1}));
  EXPECT_EQ(clipped(16, 0), (std::vector<double>{0.1, 1, 5, 0, 7, 1}));
  for (const double squares : {kInfinity, std::nan("")})
    for (const double limit : {0.0, 1.0})
      EXPECT_EQ(clipped(squares, limit)[kernels::step_value::skip], 1) << squares << " " << limit;
}

// A step that was known to have nothing to learn from stays skipped, and is no overflow to the loss scale.
TEST(ClipByNorm, KeepsStepsThatAreHeld) {
  Rank rank;
  const Tensor now = rank.tensor<double>({kernels::kStepValues}, {0.1, 1, 5, -1, 7, 1});
  kernels::clip_by_norm(rank.stream, now, rank.tensor<double>({2}, {0.25, 0}), 1);
  const std::vector<double> scale = {1024, 3, 2};
  const Tensor scaler = rank.tensor<double>({3}, scale);
  kernels::adapt_loss_scale(rank.stream, now, scaler, {.least = 1, .window = 10, .hysteresis = 2});
  EXPECT_EQ(values(now)[kernels::step_value::skip], -1);
  EXPECT_EQ(values(scaler), scale);
}

TEST(OptimizerKernels, MetaDeviceOnlyCounts) {
  Rank rank(1);
  Stream meta({Device::Kind::meta}, Arena::meta(), rank.pool);
  const auto empty = [&](DType dtype) { return meta.empty({1000}, dtype); };
  const Tensor now = meta.empty({kernels::kStepValues}, DType::f64);
  testing::adamw(meta,
                 {empty(DType::bf16), empty(kRemainder), empty(DType::f32), empty(DType::f32), empty(DType::bf16)}, now,
                 kAdam);
  EXPECT_EQ(meta.costs().at("other").at("adamw_all").bytes, 1000 * 26);
}

}  // namespace
}  // namespace witan
