#include "support/dropout.h"
#include "support/gradcheck.h"
#include "support/message_of.h"
#include "witan/ops/pointwise/elementwise.h"

namespace witan {
namespace {

using testing::close;
using testing::dropout_of;
using testing::gradcheck;
using testing::Rank;
using testing::values;

TEST(Jitter, GradientsMatchDifferences) {
  Rank rank;
  const auto where = dropout_of(rank, 0);
  for (const bool added : {false, true})
    gradcheck(rank, "jitter",
              [&](Tape& tape, const std::vector<Var>& in) {
                return std::vector{ops::jitter(tape, in[0], where, {0.3, added})};
              },
              {rank.normal({3, 2, 7}, DType::f64, "x")});
}

// Compares with the definition in kernels/pointwise/dropout.h, from the generator alone; parts begin within a block of
// random words.
TEST(Jitter, MultipliesByUniformNoiseInWholeAndParts) {
  Rank rank;
  auto where = dropout_of(rank, 0);
  const int64_t rows = 40, length = 250;
  const double eps = 0.25;
  Tape tape(rank.stream);
  const Var ones = tape.input(rank.tensor<double>({rows, length}, std::vector<double>(rows * length, 1)));
  const auto whole = values(ops::jitter(tape, ones, where, {eps}).value());
  EXPECT_EQ(values(ops::jitter(tape, ones, where, {eps, true}).value()), whole) << "1 + n is 1 (1 + n)";
  const Var zeros = tape.input(rank.tensor<double>({rows, length}, std::vector<double>(rows * length)));
  const auto noise = values(ops::jitter(tape, zeros, where, {4 * eps, true}).value());
  const auto key = [](const std::array<uint32_t, 4>& words) { return words[0] + (uint64_t{words[1]} << 32); };
  const uint64_t step = key(Philox(where.seed, Philox::stream_of("dropout")).block(7));
  const Philox words(key(Philox(step, 0).block(3)), where.site);
  double mean = 0;
  for (size_t e = 0; e < whole.size(); ++e) {
    ASSERT_NEAR(whole[e], 1 + eps * (2 * words.uniform(e) - 1), 1e-14);
    mean += whole[e] / double(whole.size());
    ASSERT_NEAR(noise[e], 4 * (whole[e] - 1), 1e-14);
  }
  EXPECT_NEAR(mean, 1, 5 * eps / std::sqrt(3.0 * double(whole.size())));
  where.part = {.length = 99, .whole = length, .runs = {.first = 17, .split = 30, .second = 101}};
  const Var part = tape.input(rank.tensor<double>({rows, 99}, std::vector<double>(rows * 99, 1)));
  const auto found = values(ops::jitter(tape, part, where, {eps}).value());
  for (int64_t i = 0; i < rows * 99; ++i)
    ASSERT_EQ(found[static_cast<size_t>(i)], whole[static_cast<size_t>(where.part.element(i))]);
}

TEST(Jitter, ErrorsNameWrongArguments) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal({4}, DType::f32, "x"));
  const auto message = [&](const kernels::Dropout& where, const kernels::Jitter& noise) {
    return test::message_of<ShapeError>([&] { ops::jitter(tape, x, where, noise); });
  };
  const std::string bounds = "jitter: eps must be at least 0 and, of noise that multiplies, below 1, got ";
  EXPECT_EQ(message(dropout_of(rank, 0), {1}), bounds + "1");
  EXPECT_EQ(message(dropout_of(rank, 0), {-1, true}), bounds + "-1");
  EXPECT_EQ(message({}, {0.5}), "jitter: noise needs step, float64 [6]");
  EXPECT_EQ(ops::jitter(tape, x, {}, {}).value().raw(), x.value().raw());
}

}  // namespace
}  // namespace witan
