// A layer of Mamba-2 gives what layers ask of any mixer: gradients, documents that do not see each other, generation
// step by step, and a state that is copied and counted.
#include "witan/nn/mamba2/mamba2.h"

#include <array>

#include "nn/mixer/recurrent_support.h"
#include "support/gradcheck.h"
#include "support/module.h"
#include "witan/comm/threads/threads.h"

namespace witan {
namespace {

using testing::attention_builder;
using testing::Rank;
using testing::values;

constexpr int64_t kMambaWidth = 12;

Mamba2Spec small_mamba(bool conv_bias = true) {
  Mamba2Spec spec;
  spec.num_heads = 4;
  spec.num_groups = 2;
  spec.head_dim = 3;
  spec.state_dim = 5;
  spec.conv_kernel_dim = 4;
  spec.conv_bias = conv_bias;
  return spec;
}

std::unique_ptr<TokenMixer> make_mamba(Rank& rank, DType dtype = DType::f64, bool conv_bias = true) {
  return small_mamba(conv_bias).make(attention_builder(rank, dtype), {.width = kMambaWidth}, {});
}

TEST(Mamba2, GradientsMatchDifferences) {
  Rank rank;
  testing::expect_input_gradients_match_differences(rank, "Mamba-2", *make_mamba(rank), kMambaWidth);
}

TEST(Mamba2, GradientsOfParametersMatchDifferences) {
  Rank rank;
  for (const bool conv_bias : {true, false})
    testing::expect_parameter_gradients_match_differences(rank, *make_mamba(rank, DType::f64, conv_bias), kMambaWidth);
}

TEST(Mamba2, PackingChangesNoBitOfADocument) {
  Rank rank;
  for (const DType dtype : {DType::f32, DType::bf16})
    testing::expect_packing_changes_no_bit(rank, *make_mamba(rank, dtype), kMambaWidth, dtype);
}

TEST(Mamba2, DecodingEqualsTheFullForward) {
  testing::expect_decoding_equals_forward([](Rank& rank, DType dtype) { return make_mamba(rank, dtype); }, kMambaWidth,
                                          5e-2);
}

TEST(Mamba2, RowsAreCopiedAndBeginAnew) {
  Rank rank;
  testing::expect_rows_are_copied_and_restarted(rank, *make_mamba(rank), kMambaWidth,
                                                small_mamba().state_bytes({3, 9}, DType::f64).of_row());
}

// Mamba-2's initial rates and steps: rates between 1 and 16, and steps between 0.001 and 0.1, also in 16 bits.
TEST(Mamba2, RatesAndStepsBeginAsInTheOriginal) {
  Rank rank;
  Mamba2Spec spec = small_mamba();
  spec.num_heads = 256;
  const auto layer = spec.make(attention_builder(rank, DType::bf16), {.width = kMambaWidth}, {});
  const auto of = [&](const char* name) {
    for (const Parameter* parameter : layer->parameters())
      if (parameter->name() == std::string("attention.") + name) {
        EXPECT_EQ(parameter->value().dtype(), DType::f32) << name;
        return values(parameter->value());
      }
    ADD_FAILURE() << "no parameter " << name;
    return std::vector<double>{0};
  };
  const auto expect_range = [](std::vector<double> found, double least, double low, double high, double most) {
    const auto [first, last] = std::ranges::minmax(found);
    EXPECT_GE(first, least);
    EXPECT_LT(first, low);
    EXPECT_GT(last, high);
    EXPECT_LE(last, most);
  };
  expect_range(of("A_log"), 0, std::log(2), std::log(14), std::log(16));
  std::vector<double> steps;
  for (const double x : of("dt_bias")) steps.push_back(std::log1p(std::exp(x)));
  expect_range(steps, 0.0009999, 0.0015, 0.07, 0.1001);
  EXPECT_EQ(of("D"), std::vector<double>(256, 1));
}

// Two ranks divide groups and heads: outputs and gradients are those of one rank.
TEST(Mamba2, TensorRanksDivideTheGroups) {
  struct Found {
    std::vector<double> y, dx;
  };
  const auto run = [&](Rank& rank, const Builder& builder) {
    const auto layer = small_mamba().make(builder, {.width = kMambaWidth}, {});
    testing::bind_gradients(rank.stream, *layer);
    Tape tape(rank.stream);
    const Var x = tape.input(rank.normal({1, 8, kMambaWidth}, DType::f64, "x"));
    const Var y = layer->forward(tape, x, testing::packed_documents(rank, {3, 1, 4}));
    tape.backward({{y, rank.normal({1, 8, kMambaWidth}, DType::f64, "dy")}});
    return Found{values(y.value()), values(tape.gradient(x))};
  };
  Rank alone;
  const Found one = run(alone, attention_builder(alone, DType::f64));
  std::array<Found, 2> parts;
  ThreadWorld world(2);
  world.run([&](int number) {
    Rank rank(1);
    const auto group = world.group(number, {0, 1}, "tensor");
    Builder builder = attention_builder(rank, DType::f64);
    builder.tensor.emplace(TensorAxis{*group});
    parts[static_cast<size_t>(number)] = run(rank, builder);
  });
  for (const Found& part : parts) {
    EXPECT_TRUE(testing::close(part.y, one.y, 1e-12, 1e-12));
    EXPECT_TRUE(testing::close(part.dx, one.dx, 1e-12, 1e-12));
  }
}

// Four ranks share each group in pairs.
TEST(Mamba2, RanksThatDivideSequencesMatchTheWhole) {
  for (const bool conv_bias : {true, false})
    for (const auto& [dtype, tolerance] :
         {std::pair{DType::f64, 1e-12}, std::pair{DType::f32, 1e-4}, std::pair{DType::bf16, 5e-2}}) {
      const auto make = [&](Rank& rank, const ContextAxis& context) {
        return small_mamba(conv_bias).make(attention_builder(rank, dtype), {.width = kMambaWidth}, context);
      };
      testing::expect_divided_sequences_match_the_whole(make, {2, 4}, kMambaWidth, dtype, tolerance);
    }
}

TEST(Mamba2, DeclaresTheChannelsThatRanksExchange) {
  const auto make = [](Rank& rank, const ContextAxis& context) {
    return small_mamba().make(attention_builder(rank, DType::f64), {.width = kMambaWidth}, context);
  };
  for (const int n : {2, 4}) testing::expect_exchanged_channels_as_declared(small_mamba(), make, n, kMambaWidth);
  EXPECT_FALSE(small_mamba().context_use(ContextExchange::automatic, 1, 1).exchanges_channels);
}

TEST(Mamba2, RanksThatDoNotDivideHeadsAreRefused) {
  for (const auto& [tensor, context, works] :
       {std::tuple{1, 1, true}, {1, 2, true}, {1, 4, true}, {2, 2, true}, {1, 3, false}, {1, 8, false}, {2, 4, false}})
    EXPECT_EQ(small_mamba().context_refusal(ContextExchange::automatic, tensor, context).empty(), works)
        << tensor << " " << context;
  EXPECT_EQ(small_mamba().context_refusal(ContextExchange::ring, 1, 8),
            "each rank computes an equal share of the heads of Mamba-2, and of their groups or one of them, which "
            "mamba_num_heads = 4 and mamba_num_groups = 2 do not allow; change these, or ");
}

}  // namespace
}  // namespace witan
