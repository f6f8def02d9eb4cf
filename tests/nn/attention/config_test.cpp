#include "witan/nn/attention/config.h"

#include <gtest/gtest.h>

#include "support/message_of.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using test::message_of;

template <class Change>
std::string refused(Change&& change, int64_t hidden_size = 32, int64_t num_layers = 4) {
  AttentionConfig config;
  change(config);
  return message_of<ConfigError>([&] { config.validate(hidden_size, num_layers); });
}

TEST(AttentionConfig, ImpossibleSizesSayWhy) {
  EXPECT_EQ(refused([](AttentionConfig& c) { c.num_query_groups = 3; }),
            "num_query_groups = 3 does not divide num_attention_heads = 4");
  EXPECT_EQ(refused([](AttentionConfig&) {}, 30),
            "num_attention_heads = 4 does not divide hidden_size = 30; set kv_channels");
  EXPECT_EQ(refused([](AttentionConfig& c) { c.rotary_percent = 1.5; }), "rotary_percent = 1.5: a share is at most 1");
  const std::string odd = "rope rotates pairs of channels: the head size 8 times rotary_percent 0.3 must be even";
  EXPECT_EQ(refused([](AttentionConfig& c) { c.rotary_percent = 0.3; }), odd);
  EXPECT_EQ(refused([](AttentionConfig& c) { c.kv_channels = 7; }),
            "rope rotates pairs of channels: the head size 7 times rotary_percent 1 must be even");

  AttentionConfig fine;
  fine.kv_channels = 7;
  fine.position_embedding_type = "none";
  fine.validate(30, 1);
  EXPECT_EQ(fine.qk_head_dim(30), 7);
  EXPECT_EQ(fine.value_head_dim(30), 7);
  fine.v_head_dim = 5;
  EXPECT_EQ(fine.value_head_dim(30), 5);
  fine.kv_channels = 0;
  EXPECT_EQ(fine.qk_head_dim(32), 8);
  for (const auto& [key, text] :
       std::vector<std::pair<std::string, std::string>>{{"num_attention_heads", "0"},
                                                        {"num_query_groups", "0"},
                                                        {"kv_channels", "-1"},
                                                        {"v_head_dim", "-1"},
                                                        {"position_embedding_type", "learned"},
                                                        {"rotary_base", "1"},
                                                        {"rotary_percent", "0"}})
    EXPECT_THROW(set_field(fine.fields(), key, text, "test"), ConfigError) << key << " = " << text;
}

std::vector<int64_t> windows(const std::string& size, const std::string& skip_freq, int64_t num_layers) {
  AttentionConfig config;
  config.window_size = size;
  config.window_attn_skip_freq = skip_freq;
  config.validate(32, num_layers);
  std::vector<int64_t> windows;
  for (const AttentionSpec& layer : config.layers(32, num_layers)) windows.push_back(layer.window);
  return windows;
}

using Windows = std::vector<int64_t>;

// Megatron-LM's is_layer_window_attention(), its layers counted from 1: full attention where N divides the number, or
// where a list has a 0; a window (left, 0) shows `left` earlier tokens beside a token's own.
TEST(AttentionConfig, WindowsAreMegatrons) {
  EXPECT_EQ(windows("none", "none", 2), Windows({0, 0}));
  for (const char* spelling : {"7", "7,0", "(7, 0)", "[7,0]", " 7,0 "})
    EXPECT_EQ(windows(spelling, "none", 2), Windows({8, 8})) << spelling;
  EXPECT_EQ(windows("7,0", "3", 7), Windows({8, 8, 0, 8, 8, 0, 8}));
  EXPECT_EQ(windows("7,0", "9", 3), Windows({8, 8, 8}));
  EXPECT_EQ(windows("7,0", "[0,1,0]", 3), Windows({0, 8, 0}));
  EXPECT_EQ(windows("7,0", "([1]*2+[0])*2", 6), Windows({8, 8, 0, 8, 8, 0}));
  EXPECT_EQ(windows("-1,0", "none", 1), Windows({0})) << "-1 is Megatron-LM's word for all earlier tokens";
}

TEST(AttentionConfig, ImpossibleWindowsSayWhy) {
  const auto size = [](const char* text) { return refused([&](AttentionConfig& c) { c.window_size = text; }); };
  const std::string read =
      ": must be how many earlier tokens a token sees, as in 4095 or 4095,0, or none for all of them";
  for (const char* bad : {"", "seven", "7,", ",7", "7,0,0", "7.5", "[7,0", "7x", "99999999999999999999"})
    EXPECT_EQ(size(bad), cat("window_size = ", bad, read));
  EXPECT_EQ(size("7,3"), "window_size = 7,3: tokens never see later ones: the second number must be 0, as in 4095,0");
  for (const char* bad : {"0", "0,0", "-2,0"})
    EXPECT_EQ(size(bad), cat("window_size = ", bad,
                             ": a window must reach back to at least 1 earlier token; set it to none for full "
                             "attention"));
  const auto freq = [](const char* text, const char* window) {
    return refused([&](AttentionConfig& c) {
      c.window_size = window;
      c.window_attn_skip_freq = text;
    });
  };
  EXPECT_EQ(freq("2", "none"),
            "window_attn_skip_freq = 2 chooses among layers with a window, and window_size = none gives none: set "
            "window_size, as 4095,0");
  for (const char* all : {"1", "[0,0,0,0]"})
    EXPECT_EQ(freq(all, "7"), cat("window_attn_skip_freq = ", all,
                                  " leaves no layer a window; full attention in every layer is window_size = none"));
  for (const char* bad : {"0", "[1,0]", "[1,2,1,0]", "often"})
    EXPECT_EQ(freq(bad, "7"), cat("window_attn_skip_freq = ", bad,
                                  ": must be a whole number, or a pattern of 0 and 1 for each of the 4 layers, as in "
                                  "[1,0]"));
}

TEST(AttentionConfig, SomeLayersMayHaveNoRotaryPositions) {
  AttentionConfig config;
  config.rotary_percent = 0.5;
  const auto dims = [&](const char* freq) {
    config.no_rope_freq = freq;
    config.validate(32, 5);
    std::vector<int64_t> rotated;
    for (const AttentionSpec& layer : config.layers(32, 5)) rotated.push_back(layer.rope.dims);
    return rotated;
  };
  EXPECT_EQ(dims("none"), Windows({4, 4, 4, 4, 4}));
  EXPECT_EQ(dims("2"), Windows({4, 0, 4, 0, 4}));
  EXPECT_EQ(dims("[1,0,0,1,0]"), Windows({0, 4, 4, 0, 4}));
  EXPECT_EQ(refused([](AttentionConfig& c) { c.no_rope_freq = "[1,1,1,1]"; }),
            "no_rope_freq = [1,1,1,1] leaves no layer its rotary positions; that is position_embedding_type = none");
  EXPECT_EQ(refused([](AttentionConfig& c) {
              c.no_rope_freq = "2";
              c.position_embedding_type = "none";
            }),
            "no_rope_freq = 2 chooses among layers with rotary positions, and position_embedding_type = none has none: "
            "set it to rope, or no_rope_freq to none");
  EXPECT_NE(refused([](AttentionConfig& c) { c.no_rope_freq = "[1]"; }).find("each of the 4 layers"),
            std::string::npos);
}

}  // namespace
}  // namespace witan
