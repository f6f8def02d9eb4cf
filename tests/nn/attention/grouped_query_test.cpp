#include "witan/nn/attention/grouped_query.h"

#include "nn/attention/attention_support.h"
#include "support/message_of.h"
#include "support/module.h"

namespace witan {
namespace {

using test::message_of;
using testing::attention_builder;
using testing::close;
using testing::decoded;
using testing::positions_of;
using testing::Rank;
using testing::step_positions;
using testing::values;

constexpr int64_t kWidth = 24;  // heads of 6

AttentionConfig config_of(int64_t heads, int64_t groups) {
  AttentionConfig config;
  config.num_attention_heads = heads;
  config.num_query_groups = groups;
  return config;
}

MultiHeadSpec spec_of(const AttentionConfig& config) {
  return std::get<MultiHeadSpec>(config.layers(kWidth, 1).front());
}

TEST(Attention, ShapesAndNames) {
  Rank rank;
  AttentionConfig config = config_of(4, 2);
  config.kv_channels = 10;
  GroupedQueryAttention attention(attention_builder(rank, DType::f32), spec_of(config), kWidth);
  std::vector<std::string> names;
  for (const Parameter* parameter : attention.parameters()) names.push_back(parameter->name());
  EXPECT_EQ(names, (std::vector<std::string>{"attention.q_proj.weight", "attention.k_proj.weight",
                                             "attention.v_proj.weight", "attention.o_proj.weight"}));
  const Shape expected[] = {{40, kWidth}, {20, kWidth}, {20, kWidth}, {kWidth, 40}};
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(attention.parameters()[i]->global_shape(), expected[i]);
  EXPECT_EQ(attention.parameters()[0]->spec().init.std, 0.3);
  EXPECT_EQ(attention.parameters()[3]->spec().init.std, 0.2) << "it projects into the residual stream";
  Tape tape(rank.stream, Tape::Mode::off);
  EXPECT_EQ(
      attention.forward(tape, tape.constant(rank.normal({2, 5, kWidth}, DType::f32, "x")), positions_of(rank, 2, 5))
          .shape(),
      Shape({2, 5, kWidth}));
}

// A gate whose logits are 0 halves the input of o_proj, and so the layer's output; decoding agrees with the forward.
TEST(Attention, GateMultipliesTheOutput) {
  Rank rank;
  AttentionConfig config = config_of(4, 2);
  GroupedQueryAttention plain(attention_builder(rank, DType::f64), spec_of(config), kWidth);
  config.attention_output_gate = true;
  GroupedQueryAttention gated(attention_builder(rank, DType::f64), spec_of(config), kWidth);
  Parameter& gate = *gated.parameters().back();
  EXPECT_EQ(gate.name(), "attention.g_proj.weight");
  EXPECT_EQ(gate.global_shape(), Shape({kWidth, kWidth}));
  const Tensor x = rank.normal({2, 5, kWidth}, DType::f64, "x");
  Tape off(rank.stream, Tape::Mode::off);
  const auto forward = [&](GroupedQueryAttention& attention) {
    return values(attention.forward(off, off.constant(x), positions_of(rank, 2, 5)).value());
  };
  for (const auto& steps : std::vector<std::vector<int64_t>>{{5}, {2, 1, 2}})
    EXPECT_TRUE(close(decoded(rank, gated, x, steps), forward(gated), 1e-12, 1e-12));
  std::ranges::fill(gate.value().span<double>(), 0);
  auto half = forward(plain);
  for (double& y : half) y /= 2;
  EXPECT_TRUE(close(forward(gated), half, 1e-12, 1e-12));
}

TEST(Attention, RotaryPositionsAreRelative) {
  Rank rank;
  for (const bool interleaved : {false, true}) {
    AttentionConfig config = config_of(3, 1);
    config.rotary_interleaved = interleaved;
    config.rotary_percent = 0.5;
    GroupedQueryAttention attention(attention_builder(rank, DType::f64), spec_of(config), kWidth);
    Tape tape(rank.stream, Tape::Mode::off);
    const Var x = tape.constant(rank.normal({1, 9, kWidth}, DType::f64, "x"));
    const auto here = values(attention.forward(tape, x, positions_of(rank, 1, 9)).value()),
               there = values(attention.forward(tape, x, positions_of(rank, 1, 9, 1000)).value());
    EXPECT_TRUE(close(here, there, 1e-11, 1e-11)) << "a shift of all positions changes nothing";
    Positions stretched = positions_of(rank, 1, 9);
    for (int32_t& position : stretched.positions.span<int32_t>()) position *= 3;
    EXPECT_FALSE(close(values(attention.forward(tape, x, stretched).value()), here, 1e-3, 0));
    config.position_embedding_type = "none";
    GroupedQueryAttention without(attention_builder(rank, DType::f64), spec_of(config), kWidth);
    EXPECT_EQ(values(without.forward(tape, x, stretched).value()),
              values(without.forward(tape, x, positions_of(rank, 1, 9)).value()));
  }
}

TEST(Attention, DecodingWithACacheEqualsTheFullForward) {
  Rank rank;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const auto& [heads, groups] : {std::pair<int64_t, int64_t>{4, 2}, {6, 1}, {3, 3}}) {
      GroupedQueryAttention attention(attention_builder(rank, dtype), spec_of(config_of(heads, groups)), kWidth);
      const Tensor x = rank.normal({2, 12, kWidth}, dtype, "x");
      Tape off(rank.stream, Tape::Mode::off);
      const auto full = values(attention.forward(off, off.constant(x), positions_of(rank, 2, 12)).value());
      const double tolerance = dtype == DType::f64 ? 1e-13 : dtype == DType::f32 ? 1e-5 : 2e-2;
      for (const auto& steps :
           std::vector<std::vector<int64_t>>{{12}, {7, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {2, 5, 5}})
        EXPECT_TRUE(close(decoded(rank, attention, x, steps), full, tolerance, tolerance))
            << dtype << ", " << heads << " heads, " << steps.size() << " steps";
    }
}

// Texts of any length: a full cache moves the last positions of a window to its front, and long prompts are divided.
TEST(Attention, DecodingInAWindowNeedsOnlyASmallCache) {
  Rank rank;
  constexpr int64_t kPositions = 23;
  for (const int64_t window : {2, 3, 5, 40})
    for (const int64_t value_dim : {4, 6, 10}) {
      AttentionConfig config = config_of(4, 2);
      config.window_size = std::to_string(window - 1);
      config.v_head_dim = value_dim;
      GroupedQueryAttention attention(attention_builder(rank, DType::f64), spec_of(config), kWidth);
      const Tensor x = rank.normal({2, kPositions, kWidth}, DType::f64, "x");
      Tape off(rank.stream, Tape::Mode::off);
      const auto full = values(attention.forward(off, off.constant(x), positions_of(rank, 2, kPositions)).value());
      const auto state = attention.make_state(rank.stream, {2, kPositions}, DType::f64);
      const auto& cache = dynamic_cast<const KvCache&>(*state);
      EXPECT_EQ(cache.keys.shape(), Shape({2, std::min(2 * window, kPositions), 2, 6}));
      EXPECT_EQ(cache.values.shape(), Shape({2, std::min(2 * window, kPositions), 2, value_dim}));
      for (const auto& steps : std::vector<std::vector<int64_t>>{
               {kPositions}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {9, 1, 1, 7, 1, 4}})
        EXPECT_TRUE(close(decoded(rank, attention, x, steps), full, 1e-13, 1e-13))
            << "a window of " << window << ", " << steps.size() << " steps";
    }
}

TEST(Attention, AWindowSeesItsOwnTokenAndThoseBefore) {
  Rank rank;
  AttentionConfig config = config_of(4, 2);
  config.window_size = "2,0";
  GroupedQueryAttention attention(attention_builder(rank, DType::f64), spec_of(config), kWidth);
  const Tensor x = rank.normal({1, 6, kWidth}, DType::f64, "x");
  Tape off(rank.stream, Tape::Mode::off);
  const auto before = values(attention.forward(off, off.constant(x), positions_of(rank, 1, 6)).value());
  x.data<double>()[kWidth] += 1;  // of token 1
  const auto after = values(attention.forward(off, off.constant(x), positions_of(rank, 1, 6)).value());
  for (int64_t token = 0; token < 6; ++token)
    EXPECT_EQ(std::equal(before.begin() + token * kWidth, before.begin() + (token + 1) * kWidth,
                         after.begin() + token * kWidth),
              token < 1 || token > 3)
        << token;
}

TEST(Attention, RefusesAFullCache) {
  Rank rank;
  GroupedQueryAttention attention(attention_builder(rank, DType::f32), spec_of(config_of(4, 2)), kWidth);
  const auto state = attention.make_state(rank.stream, {1, 4}, DType::f32);
  int64_t past = 0;
  Tape off(rank.stream, Tape::Mode::off);
  const auto step = [&](int64_t S) {
    attention.decode(off, off.constant(rank.normal({1, S, kWidth}, DType::f32, "x")), step_positions(rank, 1, S, past),
                     *state);
    past += S;
  };
  step(3);
  EXPECT_EQ(message_of<ShapeError>([&] { step(2); }), "attention: 5 positions in a cache of 4");
  EXPECT_EQ(past, 3);
  step(1);
}

}  // namespace
}  // namespace witan
