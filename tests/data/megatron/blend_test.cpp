#include "witan/data/megatron/blend.h"

#include "data/data_support.h"
#include "witan/base/error.h"

namespace witan::megatron {
namespace {

using ::testing::HasSubstr;

std::string refused(const std::string& list) {
  return message_of<ConfigError>([&] { parse_blend(list, "data_path"); });
}

TEST(Blend, AcceptsPrefixesOrWeightsAndPrefixes) {
  EXPECT_EQ(parse_blend("a", "data_path"), (Blend{{"a"}, {}}));
  EXPECT_EQ(parse_blend(" a , b,", "data_path"), (Blend{{"a", "b"}, {}}));
  EXPECT_EQ(parse_blend("0.3,a,+7e-1,b", "data_path"), (Blend{{"a", "b"}, {0.3, 0.7}}));
  EXPECT_EQ(parse_blend("2,a", "data_path"), (Blend{{"a"}, {2}}));
  EXPECT_EQ(parse_blend("1,2,3", "data_path"), (Blend{{"1", "2", "3"}, {}}))
      << "an odd number of words cannot have weights";
  EXPECT_THAT(refused("1,a,b,c"), HasSubstr("some datasets have a weight and some have none"));
  EXPECT_THAT(refused("0,a,1,b"), HasSubstr("the weight 0 is not a number above 0"));
  EXPECT_THAT(refused("nan,a,1,b"), HasSubstr("is not a number above 0"));
  EXPECT_THAT(refused(" , "), HasSubstr("names no dataset"));
}

TEST(Blend, SplitsAreContiguousShares) {
  const Shares shares = parse_split("969, 30, 1");
  EXPECT_EQ(shares[0]->begin, 0);
  EXPECT_EQ(shares[0]->end, 0.969);
  EXPECT_EQ(shares[1]->begin, shares[0]->end);
  EXPECT_EQ(shares[2]->end, 1);
  EXPECT_FALSE(parse_split("99,1,0")[2]);
  EXPECT_FALSE(parse_split("99,1")[2]);
  EXPECT_FALSE(parse_split("1,0,1")[1]);
  for (const char* bad : {"", "a", "1,2,3,4", "0,0,0", "-1,2", "nan,1"})
    EXPECT_THAT(message_of<ConfigError>([&] { parse_split(bad); }), HasSubstr("as 969,30,1")) << bad;
}

// Expected: weights / numpy.sum(weights) of NumPy 2.4.6, which adds pairwise; sequential addition gives ...3c41bp-4.
TEST(Blend, NormalizesWeightsLikeNumpy) {
  std::vector<double> weights;
  for (int i = 0; i < 200; ++i) weights.push_back(1.0 / (3 * i + 7));
  EXPECT_EQ(normalized(weights)[0], 0x1.7655631b3c417p-4);
}

TEST(Blend, DrawsFromTheDatasetThatLagsMost) {
  const BlendIndex index = build_blending_indices(normalized({1, 3}), 9);
  EXPECT_EQ(index.dataset, (std::vector<int16_t>{1, 0, 1, 1, 0, 1, 1, 1, 0}));
  EXPECT_EQ(index.sample, (std::vector<int64_t>{0, 0, 1, 2, 1, 3, 4, 5, 2}));
}

}  // namespace
}  // namespace witan::megatron
