#include "witan/comm/checks/same_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/message_of.h"
#include "support/processes.h"
#include "support/thread_world.h"

namespace witan {
namespace {

using ::testing::HasSubstr;
using testing::on_processes;
using testing::on_ranks;
using testing::ProcessRank;
using testing::ThreadRank;

TEST(SameSettings, TheDifferenceIsNamed) {
  const Settings usual = {{"hidden_size", "64"}, {"lr", "0.1"}}, other = {{"hidden_size", "128"}, {"lr", "0.1"}};
  EXPECT_EQ(difference({usual, usual}), "");
  EXPECT_EQ(difference({usual, usual, other, usual}), "hidden_size = 64 on ranks 0, 1, 3, but 128 on rank 2");
  EXPECT_EQ(difference({other, usual, usual}), "hidden_size = 64 on ranks 1, 2, but 128 on rank 0");
  EXPECT_EQ(difference({usual, other}), "hidden_size = 64 on rank 0, but 128 on rank 1") << "the first of equals";
  EXPECT_EQ(difference({usual, {{"hidden_size", "64"}}}), "lr = 0.1 on rank 0, but (unknown) on rank 1");
  EXPECT_EQ(difference({{{"hidden_size", "64"}}, usual, usual}), "lr = 0.1 on ranks 1, 2, but (unknown) on rank 0");
  EXPECT_EQ(difference({{{"mesh", ""}}, {{"mesh", "a"}}, {{"mesh", "b"}}}),
            "mesh = \"\" on rank 0, but a on rank 1, b on rank 2");
  const Settings five = {{"a", "1"}, {"b", "1"}, {"c", "1"}, {"d", "1"}, {"e", "1"}};
  EXPECT_THAT(difference({five, {}}), HasSubstr("d = 1 on rank 0, but (unknown) on rank 1; and 1 more"));
}

// Values longer than a word, so that texts are put together rightly.
template <class AnyRank>
void compare(AnyRank& rank, int odd) {
  Settings settings = {{"data", "some/folder/with/text.jsonl"}, {"seed", "1234"}};
  if (rank.rank == odd) settings[0].second = "another";
  require_same_settings(rank.stream, *rank.everyone(), settings);
}
const std::string kDiffers =
    "the ranks were started differently: data = some/folder/with/text.jsonl on ranks 0, 2, but another on rank 1. "
    "Start all of them with the same command and configuration";

TEST(SameSettings, ThreadsThatDifferAreRefused) {
  on_ranks(3, [](ThreadRank& rank) { compare(rank, -1); });
  const std::string said =
      test::message_of<ConfigError>([] { on_ranks(3, [](ThreadRank& rank) { compare(rank, 1); }); });
  EXPECT_EQ(said.substr(said.find(": ") + 2), kDiffers);
}

TEST(SameSettings, ProcessesThatDifferAreRefused) {
  const auto run = [](int odd) {
    return on_processes(3, [&](ProcessRank& rank) {
      compare(rank, odd);
      return "";
    });
  };
  for (const auto& one : run(-1)) EXPECT_EQ(one.code, 0) << one.said;
  for (const auto& one : run(1)) {
    EXPECT_EQ(one.code, static_cast<int>(ExitCode::config));
    EXPECT_THAT(one.said, HasSubstr(kDiffers));
  }
}

// A rank may hear that another one has ended with the difference before its own comparison is done. Here rank 1 never
// compares, so that it always does.
TEST(SameSettings, IsTheErrorOfARankThatHearsOfItFromAnother) {
  const auto ended = on_processes(2, [](ProcessRank& rank) {
    if (rank.rank == 0) throw SettingsDifferError("seed = 1 on rank 0, but 2 on rank 1");
    rank.everyone()->barrier(rank.stream);
    return "";
  });
  for (const auto& one : ended) {
    EXPECT_EQ(one.code, static_cast<int>(ExitCode::config));
    EXPECT_THAT(one.said, HasSubstr("seed = 1 on rank 0, but 2 on rank 1"));
  }
}

}  // namespace
}  // namespace witan
