#include "witan/base/config/layer_pattern.h"

#include <gtest/gtest.h>

#include "support/message_of.h"
#include "witan/base/error.h"

namespace witan {
namespace {

std::string text_of(const std::vector<bool>& layers) {
  std::string text;
  for (const bool layer : layers) text += layer ? '1' : '0';
  return text;
}

TEST(LayerPattern, ReadsMegatronListExpressions) {
  EXPECT_EQ(text_of(read_layer_list("([1]*3+[0]*1)*2")), "11101110");
  EXPECT_EQ(text_of(read_layer_list("([0]*1+[1]*26)")), "0" + std::string(26, '1'));
  EXPECT_EQ(text_of(read_layer_list("[0] + [1]*2")), "011");
  EXPECT_EQ(text_of(read_layer_list("[0, 1,1]")), "011");
  EXPECT_EQ(read_layer_list("[1]*100000").size(), 100000u);
}

TEST(LayerPattern, ListsMayHoldNumbers) {
  EXPECT_EQ(read_layer_numbers("[1,12]+[0]*2+[1]", 12), (std::vector<int64_t>{1, 12, 0, 0, 1}));
  for (const char* none : {"[13]", "[-1]", "[01]", "[1.5]", "[+1]", "[99999999999999999999]", "[]", "3"})
    EXPECT_TRUE(read_layer_numbers(none, 12).empty()) << none;
}

TEST(LayerPattern, RefusesOtherText) {
  for (const char* none :
       {"", "[", "[]", "[2]", "[1", "([1]", "[1]*", "[1]*0", "[1]*-1", "[1]+", "1", "[1] [0]",
        "[1]*99999999999999999999", "[1]*1000000", "([1]*1000)*1000", "[1,]", "[11]", "[01]", "[1]x"})
    EXPECT_TRUE(read_layer_list(none).empty()) << none;
  EXPECT_TRUE(read_layer_list(std::string(1000000, '(')).empty());
  EXPECT_TRUE(read_layer_list("(" + std::string(1000000, '[')).empty());
}

TEST(LayerPattern, IntegersSelectOneLayerOfEachPeriod) {
  EXPECT_EQ(text_of(choose_layers("key", "1", 3, OfPeriod::first)), "111");
  EXPECT_EQ(text_of(choose_layers("key", "3", 7, OfPeriod::first)), "1001001");
  EXPECT_EQ(text_of(choose_layers("key", "3", 7, OfPeriod::last)), "0010010");
  EXPECT_EQ(text_of(choose_layers("key", "9", 3, OfPeriod::last)), "000");
  EXPECT_EQ(text_of(choose_layers("key", "([0]+[1])*2", 4, OfPeriod::first)), "0101");
}

TEST(LayerPattern, ErrorsNameKeyAndValue) {
  for (const char* bad : {"0", "-1", "two", "1.5", "[1]", "[1,0,1]", "99999999999999999999"})
    EXPECT_EQ(test::message_of<ConfigError>([&] { choose_layers("some_freq", bad, 2, OfPeriod::first); }),
              cat("some_freq = ", bad,
                  ": must be a whole number, or a pattern of 0 and 1 for each of the 2 layers, as in [1,0]"));
}

}  // namespace
}  // namespace witan
