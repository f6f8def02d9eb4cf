// A layer of Gated DeltaNet gives what layers ask of any mixer: gradients, documents that do not see each other,
// generation step by step, and a state that is copied and counted.
#include "witan/nn/gated_delta/gated_delta.h"

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

constexpr int64_t kWidth = 12;

GatedDeltaSpec small_spec() {
  GatedDeltaSpec spec;
  spec.num_key_heads = 2;
  spec.num_value_heads = 4;
  spec.key_head_dim = 5;
  spec.value_head_dim = 3;
  spec.conv_kernel_dim = 4;
  return spec;
}

std::unique_ptr<TokenMixer> make_layer(Rank& rank, DType dtype = DType::f64) {
  return small_spec().make(attention_builder(rank, dtype), {.width = kWidth}, {});
}

TEST(GatedDelta, GradientsMatchDifferences) {
  Rank rank;
  testing::expect_input_gradients_match_differences(rank, "gated delta", *make_layer(rank), kWidth);
}

TEST(GatedDelta, GradientsOfParametersMatchDifferences) {
  Rank rank;
  testing::expect_parameter_gradients_match_differences(rank, *make_layer(rank), kWidth);
}

// With strengths up to 2 and an epsilon of its own, which both enter the outputs.
TEST(GatedDelta, VariantsOfOlmoHybridKeepThePromises) {
  Rank rank;
  const auto made = [&](bool negative, double epsilon) {
    GatedDeltaSpec spec = small_spec();
    spec.negative_eigenvalues = negative;
    spec.norm_epsilon = epsilon;
    return spec.make(attention_builder(rank, DType::f64), {.width = kWidth}, {});
  };
  const auto layer = made(true, 0.1);
  testing::expect_parameter_gradients_match_differences(rank, *layer, kWidth);
  const Tensor x = rank.normal({2, 12, kWidth}, DType::f64, "x");
  testing::expect_decoding_equals_forward(rank, *layer, x, 1e-12);
  Tape off(rank.stream, Tape::Mode::off);
  const auto y = [&](TokenMixer& of) {
    return values(of.forward(off, off.constant(x), testing::positions_of(rank, 2, 12)).value());
  };
  EXPECT_NE(y(*layer), y(*made(false, 0.1)));
  EXPECT_NE(y(*layer), y(*made(true, 0)));
}

// Kimi Delta Attention.
TEST(GatedDelta, DecaysOfChannelsKeepThePromises) {
  GatedDeltaSpec spec = small_spec();
  spec.num_key_heads = spec.num_value_heads;
  spec.channel_decays = true;
  const auto make = [&](Rank& rank, DType dtype) {
    return spec.make(attention_builder(rank, dtype), {.width = kWidth}, {});
  };
  Rank rank;
  testing::expect_input_gradients_match_differences(rank, "decays of channels", *make(rank, DType::f64), kWidth);
  testing::expect_parameter_gradients_match_differences(rank, *make(rank, DType::f64), kWidth);
  for (const DType dtype : {DType::f32, DType::bf16})
    testing::expect_packing_changes_no_bit(rank, *make(rank, dtype), kWidth, dtype);
  testing::expect_decoding_equals_forward(make, kWidth, 5e-2);
  testing::expect_rows_are_copied_and_restarted(rank, *make(rank, DType::f64), kWidth,
                                                spec.state_bytes({3, 9}, DType::f64).of_row());
}

TEST(GatedDelta, PackingChangesNoBitOfADocument) {
  Rank rank;
  for (const DType dtype : {DType::f32, DType::bf16})
    testing::expect_packing_changes_no_bit(rank, *make_layer(rank, dtype), kWidth, dtype);
}

TEST(GatedDelta, DecodingEqualsTheFullForward) {
  testing::expect_decoding_equals_forward([](Rank& rank, DType dtype) { return make_layer(rank, dtype); }, kWidth,
                                          5e-2);
}

TEST(GatedDelta, RowsAreCopiedAndBeginAnew) {
  Rank rank;
  testing::expect_rows_are_copied_and_restarted(rank, *make_layer(rank), kWidth,
                                                small_spec().state_bytes({3, 9}, DType::f64).of_row());
}

TEST(GatedDelta, DecaysBeginBetweenOneAndSixteen) {
  Rank rank;
  GatedDeltaSpec spec = small_spec();
  spec.num_value_heads = 64;
  const auto layer = spec.make(attention_builder(rank, DType::f64), {.width = kWidth}, {});
  for (const Parameter* parameter : layer->parameters()) {
    if (parameter->name() != "attention.A_log") continue;
    const auto logs = values(parameter->value());
    EXPECT_GE(std::ranges::min(logs), 0);
    EXPECT_LT(std::ranges::min(logs), std::log(4));
    EXPECT_GT(std::ranges::max(logs), std::log(12));
    EXPECT_LE(std::ranges::max(logs), std::log(16));
    return;
  }
  FAIL() << "no parameter A_log";
}

// Two ranks divide the heads: outputs and gradients of x are those of one rank, and their gradients of the norm's
// weight, which each applies to its own heads, add up.
TEST(GatedDelta, TensorRanksDivideTheHeads) {
  const std::vector<int64_t> lengths = {3, 1, 4};
  struct Found {
    std::vector<double> y, dx, of_norm;
  };
  const auto run = [&](Rank& rank, const Builder& builder) {
    const auto layer = small_spec().make(builder, {.width = kWidth}, {});
    testing::bind_gradients(rank.stream, *layer);
    Tape tape(rank.stream);
    const Var x = tape.input(rank.normal({1, 8, kWidth}, DType::f64, "x"));
    const Var y = layer->forward(tape, x, testing::packed_documents(rank, lengths));
    tape.backward({{y, rank.normal({1, 8, kWidth}, DType::f64, "dy")}});
    Found found{values(y.value()), values(tape.gradient(x)), {}};
    for (Parameter* parameter : layer->parameters())
      if (parameter->name() == "attention.norm.weight") found.of_norm = values(parameter->gradient());
    return found;
  };
  Rank alone;
  const Found one = run(alone, attention_builder(alone, DType::f64));
  ASSERT_EQ(one.of_norm.size(), 3U);
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
  for (size_t d = 0; d < 3; ++d) EXPECT_NEAR(parts[0].of_norm[d] + parts[1].of_norm[d], one.of_norm[d], 1e-12);
}

std::unique_ptr<TokenMixer> make_divided(Rank& rank, const ContextAxis& context, DType dtype) {
  return small_spec().make(attention_builder(rank, dtype), {.width = kWidth}, context);
}

// Four ranks share each head of keys in pairs.
TEST(GatedDelta, RanksThatDivideSequencesMatchTheWhole) {
  for (const auto& [dtype, tolerance] :
       {std::pair{DType::f64, 1e-12}, std::pair{DType::f32, 1e-4}, std::pair{DType::bf16, 5e-2}}) {
    const auto make = [&](Rank& rank, const ContextAxis& context) { return make_divided(rank, context, dtype); };
    testing::expect_divided_sequences_match_the_whole(make, {2, 4}, kWidth, dtype, tolerance);
  }
}

TEST(GatedDelta, DeclaresTheChannelsThatRanksExchange) {
  const auto make = [](Rank& rank, const ContextAxis& context) { return make_divided(rank, context, DType::f64); };
  for (const int n : {2, 4}) testing::expect_exchanged_channels_as_declared(small_spec(), make, n, kWidth);
  EXPECT_FALSE(small_spec().context_use(ContextExchange::automatic, 1, 1).exchanges_channels);
}

TEST(GatedDelta, RanksThatDoNotDivideHeadsAreRefused) {
  for (const auto& [tensor, context, works] :
       {std::tuple{1, 1, true}, {1, 2, true}, {1, 4, true}, {2, 2, true}, {1, 3, false}, {1, 8, false}, {2, 4, false}})
    EXPECT_EQ(small_spec().context_refusal(ContextExchange::automatic, tensor, context).empty(), works)
        << tensor << " " << context;
  EXPECT_EQ(
      small_spec().context_refusal(ContextExchange::ring, 2, 4),
      "each rank computes an equal share of the heads of Gated DeltaNet, and of their groups or one of them, which "
      "linear_num_value_heads = 4 and linear_num_key_heads = 2 over tensor_model_parallel_size = 2 do not allow; "
      "change these, or ");
}

}  // namespace
}  // namespace witan
