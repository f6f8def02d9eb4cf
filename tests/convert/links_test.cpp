#include "witan/convert/links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "support/message_of.h"
#include "witan/base/error.h"
#include "witan/convert/tensor_names.h"

namespace witan {
namespace {

using ::testing::HasSubstr;

// A box of sizes [2, 3, 4] with `to` of [2, 3, 4] and `from` of [4, 2, 3].
SharedBox turned() {
  SharedBox box;
  box.sizes = {1, 2, 3, 4};
  box.to = {"a", 0, {0, 12, 4, 1}};
  box.from = {"b", 0, {0, 3, 1, 6}};
  box.normalise();
  return box;
}

// The elements [first, first + count) of a link whose source elements are their own indices.
std::vector<float> gathered(const Link& link, int64_t first, int64_t count, int64_t of_source) {
  std::vector<float> numbers(static_cast<size_t>(of_source)), out(static_cast<size_t>(count), -1);
  std::iota(numbers.begin(), numbers.end(), 0.0F);
  gather(link, first, count, Element::f32, reinterpret_cast<std::byte*>(out.data()), [&](const std::string&) {
    return HeldTensor{Element::f32, std::as_bytes(std::span(numbers))};
  });
  return out;
}

TEST(Links, EveryRangeIsGatheredAsTheBoxDefines) {
  const Link link{"a", {2, 3, 4}, {turned()}};
  const Link inverse{"b", {4, 2, 3}, {turned().inverse()}};
  for (int64_t first = 0; first < 24; ++first)
    for (int64_t count = 0; first + count <= 24; ++count) {
      const auto found = gathered(link, first, count, 24), back = gathered(inverse, first, count, 24);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t at = first + i, x = at / 12, y = at / 4 % 3, z = at % 4;
        ASSERT_EQ(found[static_cast<size_t>(i)], static_cast<float>(z * 6 + x * 3 + y)) << first << " " << count;
        const int64_t p = at / 6, q = at / 3 % 2, r = at % 3;
        ASSERT_EQ(back[static_cast<size_t>(i)], static_cast<float>(q * 12 + r * 4 + p)) << first << " " << count;
      }
    }
}

TEST(Links, JoinsContiguousRuns) {
  SharedBox box;
  box.sizes = {2, 3, 4, 5};
  box.to = {"a", 7, {60, 20, 5, 1}};
  box.from = {"b", 9, {60, 20, 5, 1}};
  box.normalise();
  EXPECT_EQ(box.sizes, (std::array<int64_t, 4>{1, 1, 1, 120}));
}

TEST(Links, PaddingIsZero) {
  SharedBox box;
  box.sizes = {1, 1, 1, 6};
  box.to = {"a", 0, {0, 0, 0, 1}};
  box.from = {"b", 0, {0, 0, 0, 1}};
  const Link link{"a", {4, 2}, {box}, 2};
  EXPECT_THAT(gathered(link, 0, 8, 6), ::testing::ElementsAre(0, 1, 2, 3, 4, 5, 0, 0));
  EXPECT_THAT(gathered(link, 7, 1, 6), ::testing::ElementsAre(0));
  check_cover(link, "here");
}

TEST(Links, FindsHolesAndOverlaps) {
  const auto box = [](int64_t first, int64_t count) {
    SharedBox one;
    one.sizes = {1, 1, 1, count};
    one.to = {"a", first, {0, 0, 0, 1}};
    one.from = {"b", 0, {0, 0, 0, 1}};
    return one;
  };
  const auto error = [](const Link& link) {
    return test::message_of<CheckpointError>([&] { check_cover(link, "here"); });
  };
  EXPECT_THAT(error({"a", {8}, {box(0, 5), box(4, 4)}}), HasSubstr("element 4 of \"a\" [8] comes from two places"));
  EXPECT_THAT(error({"a", {8}, {box(5, 3), box(0, 4)}}), HasSubstr("element 4 of \"a\" [8] comes from nowhere"));
  EXPECT_THAT(error({"a", {8}, {box(0, 5)}}), HasSubstr("element 5 of \"a\" [8] comes from nowhere"));
  EXPECT_THAT(error({"a", {8}, {box(0, 9)}}), HasSubstr("is beyond its end"));
}

// [E, 2 F, D] from gpt-oss's [E, D, 2 F], where gate and up alternate.
TEST(Links, SeparatesInterleavedGateAndUp) {
  const int64_t E = 3, F = 2, D = 5;
  const std::vector<ModelTensor> tensors = {{"layers.4.moe.experts.gate_up_proj", {E, 2 * F, D}, DType::f32, true}};
  const NameStyle style{ExpertStorage::fused};
  const Architecture& architecture = *find_architecture("gpt_oss");
  const auto others = other_tensors(architecture, style, tensors, {});
  ASSERT_EQ(others.size(), 1U);
  EXPECT_EQ(others[0].first, "model.layers.4.mlp.experts.gate_up_proj");
  EXPECT_EQ(others[0].second, Shape({E, D, 2 * F}));
  const auto links = link_model(architecture, style, tensors, {});
  const auto found = gathered(links[0], 0, E * 2 * F * D, E * 2 * F * D);
  for (int64_t e = 0; e < E; ++e)
    for (int64_t r = 0; r < 2 * F; ++r)
      for (int64_t d = 0; d < D; ++d)
        EXPECT_EQ(found[static_cast<size_t>((e * 2 * F + r) * D + d)],
                  static_cast<float>((e * D + d) * 2 * F + 2 * (r % F) + r / F));
  const auto back = inverse_links(links, others);
  check_cover(back[0], "inverse");
}

// Queries, keys and values are thirds of GPT-2's single matrix, which is [in, out].
TEST(Links, SplitsGpt2sJoinedMatrix) {
  const int64_t D = 4;
  std::vector<ModelTensor> tensors;
  for (const char* name : {"q", "k", "v"})
    tensors.push_back({cat("layers.0.attention.", name, "_proj.weight"), {D, D}});
  const Architecture& architecture = *find_architecture("gpt2");
  const auto others = other_tensors(architecture, {}, tensors, {});
  ASSERT_EQ(others.size(), 1U);
  EXPECT_EQ(others[0].second, Shape({D, 3 * D}));
  const auto links = link_model(architecture, {}, tensors, {});
  for (int64_t which = 0; which < 3; ++which) {
    const auto found = gathered(links[static_cast<size_t>(which)], 0, D * D, 3 * D * D);
    for (int64_t o = 0; o < D; ++o)
      for (int64_t i = 0; i < D; ++i)
        EXPECT_EQ(found[static_cast<size_t>(o * D + i)], static_cast<float>(i * 3 * D + which * D + o));
  }
  check_cover(inverse_links(links, others)[0], "inverse");
}

// Rows of Qwen3-Next's joined projection: queries, keys, values and gates for each key head.
TEST(Links, SplitsJoinedProjectionsByHead) {
  const int64_t G = 2, r = 3, dk = 2, dv = 4, D = 5;
  ModelConfig model;
  model.linear_attention.linear_num_key_heads = G;
  const std::vector<std::pair<const char*, int64_t>> of_head = {{"q", dk}, {"k", dk}, {"v", r * dv}, {"z", r * dv}};
  std::vector<ModelTensor> tensors;
  for (const auto& [name, rows] : of_head)
    tensors.push_back({cat("layers.0.gated_delta.", name, "_proj.weight"), {G * rows, D}});
  const Architecture& architecture = *find_architecture("qwen3_next");
  const auto others = other_tensors(architecture, {}, tensors, model);
  const int64_t together = 2 * dk + 2 * r * dv;
  ASSERT_EQ(others.size(), 1U);
  EXPECT_EQ(others[0].first, "model.layers.0.linear_attn.in_proj_qkvz.weight");
  EXPECT_EQ(others[0].second, Shape({G * together, D}));
  const auto links = link_model(architecture, {}, tensors, model);
  int64_t before = 0;
  for (size_t which = 0; which < of_head.size(); ++which) {
    const int64_t rows = of_head[which].second;
    const auto found = gathered(links[which], 0, G * rows * D, G * together * D);
    for (int64_t row = 0; row < G * rows; ++row)
      for (int64_t i = 0; i < D; ++i)
        EXPECT_EQ(found[static_cast<size_t>(row * D + i)],
                  static_cast<float>((row / rows * together + before + row % rows) * D + i));
    before += rows;
  }
  check_cover(inverse_links(links, others)[0], "inverse");
  model.linear_attention.linear_num_key_heads = 3;
  EXPECT_THAT(test::message_of<ConfigError>([&] { link_model(architecture, {}, tensors, model); }),
              HasSubstr("layers.0.gated_delta.q_proj.weight has 4 rows, which 3 heads do not divide"));
}

TEST(Links, MapsValuesBothWays) {
  SharedBox box;
  box.sizes = {1, 1, 1, 3};
  box.to = {"a", 0, {0, 0, 0, 1}};
  box.from = {"b", 0, {0, 0, 0, 1}};
  for (const auto& [map, expected] : std::vector<std::pair<ValueMap, std::vector<float>>>{
           {ValueMap::plus_one, {1, 2, 3}}, {ValueMap::minus_one, {-1, 0, 1}}, {ValueMap::same, {0, 1, 2}}}) {
    box.values = map;
    EXPECT_EQ(gathered({"a", {3}, {box}}, 0, 3, 3), expected);
    EXPECT_EQ(box.inverse().values, inverse_of(map));
    for (const double value : {-0.5, 0.25}) EXPECT_EQ(mapped(inverse_of(map), mapped(map, value)), value);
  }
  EXPECT_EQ(mapped(ValueMap::minus_exp, 0), -1);
  EXPECT_NEAR(mapped(inverse_of(ValueMap::minus_exp), mapped(ValueMap::minus_exp, 2.5)), 2.5, 1e-15);
}

TEST(Links, RefusesWhatTheArchitectureCannotStore) {
  const std::string message = test::message_of<ConfigError>([] {
    link_model(*find_architecture("llama"), {}, {{"layers.0.moe.router.weight", {4, 8}}}, {});
  });
  EXPECT_THAT(message, HasSubstr("layers.0.moe.router.weight [4, 8]"));
  EXPECT_THAT(message, HasSubstr("llama has no place for"));
}

TEST(Links, ComputesMasks) {
  const Architecture& gpt2 = *find_architecture("gpt2");
  for (const char* name : {"h.3.attn.bias", "transformer.h.11.attn.masked_bias"}) EXPECT_TRUE(is_computed(gpt2, name));
  for (const char* name : {"h.3.attn.c_attn.bias", "h.x.attn.bias", "h..attn.bias"})
    EXPECT_FALSE(is_computed(gpt2, name));
}

}  // namespace
}  // namespace witan
