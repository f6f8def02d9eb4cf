#include "witan/nn/attention.h"

#include "support/message_of.h"
#include "support/module.h"

namespace witan {
namespace {

using test::message_of;
using testing::close;
using testing::Rank;
using testing::values;

constexpr int64_t kWidth = 24;

Builder builder_of(Rank& rank, DType dtype) {
  return {.stream = rank.stream, .dtype = dtype, .init_std = 0.3, .output_init_std = 0.2, .path = "attention"};
}

Positions positions_of(Rank& rank, int64_t B, int64_t S, int64_t first = 0) {
  std::vector<int32_t> all;
  for (int64_t b = 0; b < B; ++b)
    for (int64_t s = 0; s < S; ++s) all.push_back(static_cast<int32_t>(first + s));
  return {rank.tensor<int32_t>({B, S}, all), {}};
}

AttentionConfig config_of(int64_t heads, int64_t groups) {
  AttentionConfig config;
  config.num_attention_heads = heads;
  config.num_query_groups = groups;
  return config;
}

TEST(Attention, ShapesAndNames) {
  Rank rank;
  AttentionConfig config = config_of(4, 2);
  config.kv_channels = 10;
  Attention attention(builder_of(rank, DType::f32), config, kWidth);
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

TEST(Attention, RotaryPositionsAreRelative) {
  Rank rank;
  for (const bool interleaved : {false, true}) {
    AttentionConfig config = config_of(3, 1);
    config.rotary_interleaved = interleaved;
    config.rotary_percent = 0.5;
    Attention attention(builder_of(rank, DType::f64), config, kWidth);
    Tape tape(rank.stream, Tape::Mode::off);
    const Var x = tape.constant(rank.normal({1, 9, kWidth}, DType::f64, "x"));
    const auto here = values(attention.forward(tape, x, positions_of(rank, 1, 9)).value()),
               there = values(attention.forward(tape, x, positions_of(rank, 1, 9, 1000)).value());
    EXPECT_TRUE(close(here, there, 1e-11, 1e-11)) << "a shift of all positions changes nothing";
    Positions stretched = positions_of(rank, 1, 9);
    for (int32_t& position : stretched.positions.span<int32_t>()) position *= 3;
    EXPECT_FALSE(close(values(attention.forward(tape, x, stretched).value()), here, 1e-3, 0));
    config.position_embedding_type = "none";
    Attention without(builder_of(rank, DType::f64), config, kWidth);
    EXPECT_EQ(values(without.forward(tape, x, stretched).value()),
              values(without.forward(tape, x, positions_of(rank, 1, 9)).value()));
  }
}

// Decodes x [B, S, D] in steps of these sizes.
std::vector<double> decoded(Rank& rank, Attention& attention, const Tensor& x, const std::vector<int64_t>& steps) {
  const int64_t B = x.size(0), S = x.size(1);
  KvCache cache = attention.make_cache(rank.stream, B, S, x.dtype());
  std::vector<double> out(static_cast<size_t>(x.elements()));
  for (const int64_t step : steps) {
    const int64_t first = cache.length;
    const Tensor part = rank.stream.empty({B, step, kWidth}, x.dtype());
    dispatch_floating(x.dtype(), [&]<class T>() {
      for (int64_t b = 0; b < B; ++b)
        std::copy_n(x.data<T>() + (b * S + first) * kWidth, step * kWidth, part.data<T>() + b * step * kWidth);
    });
    Tape off(rank.stream, Tape::Mode::off);
    const auto y = values(attention.decode(off, off.constant(part), positions_of(rank, B, step, first), cache).value());
    for (int64_t b = 0; b < B; ++b)
      std::copy_n(y.begin() + b * step * kWidth, step * kWidth, out.begin() + (b * S + first) * kWidth);
    EXPECT_EQ(cache.length, first + step);
  }
  return out;
}

TEST(Attention, DecodingWithACacheEqualsTheFullForward) {
  Rank rank;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const auto& [heads, groups] : {std::pair<int64_t, int64_t>{4, 2}, {6, 1}, {3, 3}}) {
      Attention attention(builder_of(rank, dtype), config_of(heads, groups), kWidth);
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

TEST(Attention, AFullCacheIsAnError) {
  Rank rank;
  Attention attention(builder_of(rank, DType::f32), config_of(4, 2), kWidth);
  KvCache cache = attention.make_cache(rank.stream, 1, 4, DType::f32);
  Tape off(rank.stream, Tape::Mode::off);
  const auto step = [&](int64_t S) {
    attention.decode(off, off.constant(rank.normal({1, S, kWidth}, DType::f32, "x")),
                     positions_of(rank, 1, S, cache.length), cache);
  };
  step(3);
  EXPECT_EQ(message_of<ShapeError>([&] { step(2); }), "attention: 5 positions in a cache of 4");
  EXPECT_EQ(cache.length, 3);
  step(1);
}

TEST(AttentionConfig, ImpossibleSizesSayWhy) {
  const auto said = [](auto&& change, int64_t hidden_size = 32) {
    AttentionConfig config;
    change(config);
    return message_of<ConfigError>([&] { config.validate(hidden_size); });
  };
  EXPECT_EQ(said([](AttentionConfig& c) { c.num_query_groups = 3; }),
            "num_query_groups = 3 does not divide num_attention_heads = 4");
  EXPECT_EQ(said([](AttentionConfig&) {}, 30),
            "num_attention_heads = 4 does not divide hidden_size = 30; set kv_channels");
  EXPECT_EQ(said([](AttentionConfig& c) { c.rotary_percent = 1.5; }), "rotary_percent = 1.5: a share is at most 1");
  const std::string odd = "rope rotates pairs of channels: the head size 8 times rotary_percent 0.3 must be even";
  EXPECT_EQ(said([](AttentionConfig& c) { c.rotary_percent = 0.3; }), odd);
  EXPECT_EQ(said([](AttentionConfig& c) { c.kv_channels = 7; }),
            "rope rotates pairs of channels: the head size 7 times rotary_percent 1 must be even");

  AttentionConfig fine;
  fine.kv_channels = 7;
  fine.position_embedding_type = "none";
  fine.validate(30);
  EXPECT_EQ(fine.head_dim(30), 7);
  fine.kv_channels = 0;
  EXPECT_EQ(fine.head_dim(32), 8);
  for (const auto& [key, text] :
       std::vector<std::pair<std::string, std::string>>{{"num_attention_heads", "0"},
                                                        {"num_query_groups", "0"},
                                                        {"kv_channels", "-1"},
                                                        {"position_embedding_type", "learned"},
                                                        {"rotary_base", "1"},
                                                        {"rotary_percent", "0"}})
    EXPECT_THROW(set_field(fine.fields(), key, text, "test"), ConfigError) << key << " = " << text;
}

}  // namespace
}  // namespace witan
