#include "witan/nn/attention/latent.h"

#include "nn/attention/attention_support.h"
#include "support/gradcheck.h"
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
using testing::values;

constexpr int64_t kWidth = 16;

AttentionConfig latent_config(int64_t q_rank) {
  AttentionConfig config;
  config.multi_latent_attention = true;
  config.num_attention_heads = 3;
  config.q_lora_rank = q_rank;
  config.kv_lora_rank = 10;
  config.latent_qk_head_dim = 6;
  config.qk_pos_emb_head_dim = 4;
  config.v_head_dim = 5;
  config.rotary_interleaved = true;
  config.validate(kWidth, 1);
  return config;
}

LatentSpec spec_of(const AttentionConfig& config) {
  return std::get<LatentSpec>(config.layers(kWidth, 1).front());
}

TEST(LatentAttention, ShapesAndNames) {
  using Named = std::vector<std::pair<std::string, Shape>>;
  const Named shared = {{"attention.kv_a_proj_with_mqa.weight", {14, kWidth}},
                        {"attention.kv_a_layernorm.weight", {10}},
                        {"attention.kv_b_proj.weight", {33, 10}},
                        {"attention.o_proj.weight", {kWidth, 15}}};
  for (const int64_t q_rank : {0, 7}) {
    Rank rank;
    LatentAttention attention(attention_builder(rank, DType::f32), spec_of(latent_config(q_rank)), kWidth);
    Named expected = {{"attention.q_proj.weight", {30, kWidth}}};
    if (q_rank > 0)
      expected = {{"attention.q_a_proj.weight", {7, kWidth}},
                  {"attention.q_a_layernorm.weight", {7}},
                  {"attention.q_b_proj.weight", {30, 7}}};
    expected.insert(expected.end(), shared.begin(), shared.end());
    Named got;
    for (const Parameter* parameter : attention.parameters())
      got.emplace_back(parameter->name(), parameter->global_shape());
    EXPECT_EQ(got, expected);
    EXPECT_EQ(attention.parameters().back()->spec().init.std, 0.2) << "it projects into the residual stream";
    Tape tape(rank.stream, Tape::Mode::off);
    const Var x = tape.constant(rank.normal({2, 5, kWidth}, DType::f32, "x"));
    EXPECT_EQ(attention.forward(tape, x, positions_of(rank, 2, 5)).shape(), Shape({2, 5, kWidth}));
  }
}

TEST(LatentAttention, GradientsOfItsInputMatchDifferences) {
  Rank rank;
  for (const int64_t q_rank : {0, 7}) {
    AttentionConfig config = latent_config(q_rank);
    config.window_size = "2";
    LatentAttention attention(attention_builder(rank, DType::f64), spec_of(config), kWidth);
    testing::bind_gradients(rank.stream, attention);
    testing::gradcheck(rank, "latent attention",
                       [&](Tape& tape, const std::vector<Var>& in) {
                         return std::vector{attention.forward(tape, in[0], positions_of(rank, 2, 4))};
                       },
                       {rank.normal({2, 4, kWidth}, DType::f64, "x")});
  }
}

TEST(LatentAttention, RotaryPositionsAreRelative) {
  Rank rank;
  LatentAttention attention(attention_builder(rank, DType::f64), spec_of(latent_config(7)), kWidth);
  Tape tape(rank.stream, Tape::Mode::off);
  const Var x = tape.constant(rank.normal({1, 9, kWidth}, DType::f64, "x"));
  const auto here = values(attention.forward(tape, x, positions_of(rank, 1, 9)).value()),
             there = values(attention.forward(tape, x, positions_of(rank, 1, 9, 1000)).value());
  EXPECT_TRUE(close(here, there, 1e-11, 1e-11)) << "a shift of all positions changes nothing";
  Positions stretched = positions_of(rank, 1, 9);
  for (int32_t& position : stretched.positions.span<int32_t>()) position *= 3;
  EXPECT_FALSE(close(values(attention.forward(tape, x, stretched).value()), here, 1e-3, 0));
}

TEST(LatentAttention, DecodingWithACacheEqualsTheFullForward) {
  Rank rank;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const char* window : {"none", "4"}) {
      AttentionConfig config = latent_config(7);
      config.window_size = window;
      LatentAttention attention(attention_builder(rank, dtype), spec_of(config), kWidth);
      const Tensor x = rank.normal({2, 12, kWidth}, dtype, "x");
      Tape off(rank.stream, Tape::Mode::off);
      const auto full = values(attention.forward(off, off.constant(x), positions_of(rank, 2, 12)).value());
      const double tolerance = dtype == DType::f64 ? 1e-13 : dtype == DType::f32 ? 1e-5 : 4e-2;
      for (const auto& steps : std::vector<std::vector<int64_t>>{{12}, {7, 1, 1, 1, 1, 1}, {2, 5, 5}})
        EXPECT_TRUE(close(decoded(rank, attention, x, steps), full, tolerance, tolerance))
            << dtype << ", window " << window << ", " << steps.size() << " steps";
    }
}

TEST(LatentAttention, DecodingWithLatentsEqualsTheFullForward) {
  Rank rank;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const int64_t q_rank : {0, 7})
      for (const char* window : {"none", "4"}) {
        AttentionConfig config = latent_config(q_rank);
        config.window_size = window;
        LatentAttention attention(attention_builder(rank, dtype), spec_of(config), kWidth);
        const Tensor x = rank.normal({2, 12, kWidth}, dtype, "x");
        Tape off(rank.stream, Tape::Mode::off);
        const auto full = values(attention.forward(off, off.constant(x), positions_of(rank, 2, 12)).value());
        const double tolerance = dtype == DType::f64 ? 1e-11 : dtype == DType::f32 ? 1e-5 : 4e-2;
        for (const auto& steps : std::vector<std::vector<int64_t>>{{12}, {7, 1, 1, 1, 1, 1}, {1, 1, 10}, {2, 5, 5}})
          EXPECT_TRUE(close(decoded(rank, attention, x, steps, {.latents = true}), full, tolerance, tolerance))
              << dtype << ", window " << window << ", " << steps.size() << " steps";
      }
}

// e4m3 keeps three bits: a number is off by a sixteenth at most, and sums of many by less. Without steps that read the
// cache nothing is rounded.
TEST(LatentAttention, DecodingWithFp8IsNearTheFullForward) {
  Rank rank;
  LatentAttention attention(attention_builder(rank, DType::f64), spec_of(latent_config(7)), kWidth);
  const Tensor x = rank.normal({2, 12, kWidth}, DType::f64, "x");
  Tape off(rank.stream, Tape::Mode::off);
  const auto full = values(attention.forward(off, off.constant(x), positions_of(rank, 2, 12)).value());
  const double largest = std::abs(*std::ranges::max_element(full, {}, [](double y) { return std::abs(y); }));
  for (const bool latents : {false, true}) {
    const CacheFormat format{.latents = latents, .fp8 = true};
    EXPECT_TRUE(close(decoded(rank, attention, x, {12}, format), full, 1e-13, 1e-13));
    const auto stepped = decoded(rank, attention, x, {2, 5, 1, 1, 1, 1, 1}, format);
    EXPECT_TRUE(close(stepped, full, largest / 16, 0));
    EXPECT_FALSE(close(stepped, full, 1e-6, 0)) << "latents " << latents;
  }
}

TEST(LatentAttention, CachesOfLatentsHoldOneGroup) {
  Rank rank;
  LatentAttention attention(attention_builder(rank, DType::f32), spec_of(latent_config(0)), kWidth);
  const auto state =
      attention.make_state(rank.stream, {.rows = 1, .positions = 4, .cache = {.latents = true}}, DType::f32);
  const auto& cache = dynamic_cast<const LatentCache&>(*state);
  EXPECT_EQ(cache.keys.shape(), Shape({1, 4, 1, 4}));
  EXPECT_EQ(cache.values.shape(), Shape({1, 4, 1, 10}));
  Tape off(rank.stream, Tape::Mode::off);
  EXPECT_EQ(message_of<ShapeError>([&] {
              attention.decode(off, off.constant(rank.normal({1, 5, kWidth}, DType::f32, "x")),
                               testing::step_positions(rank, 1, 5, 0), *state);
            }),
            "attention: 5 positions in a cache of 4");
}

TEST(LatentAttention, RefusesAFullCache) {
  Rank rank;
  LatentAttention attention(attention_builder(rank, DType::f32), spec_of(latent_config(0)), kWidth);
  const auto state = attention.make_state(rank.stream, {1, 4}, DType::f32);
  const auto& cache = dynamic_cast<const KvCache&>(*state);
  EXPECT_EQ(cache.keys.shape(), Shape({1, 4, 3, 10}));
  EXPECT_EQ(cache.values.shape(), Shape({1, 4, 3, 5}));
  Tape off(rank.stream, Tape::Mode::off);
  EXPECT_EQ(message_of<ShapeError>([&] {
              attention.decode(off, off.constant(rank.normal({1, 5, kWidth}, DType::f32, "x")),
                               testing::step_positions(rank, 1, 5, 0), *state);
            }),
            "attention: 5 positions in a cache of 4");
}

}  // namespace
}  // namespace witan
