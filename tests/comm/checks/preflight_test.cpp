#include "witan/comm/checks/preflight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/message_of.h"
#include "support/processes.h"
#include "support/thread_world.h"
#include "witan/comm/meta.h"

namespace witan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::on_processes;
using testing::on_ranks;
using testing::ProcessRank;
using testing::ThreadRank;

struct Meta {
  Meta() : pool(1), stream({Device::Kind::meta}, Arena::meta(), pool) {}
  Tensor tensor(const Shape& shape, DType dtype = DType::f32) { return stream.empty(shape, dtype); }

  ThreadPool pool;
  Stream stream;
};

// The calls of one of three ranks: a sum, an all-to-all, and a send from rank 0 to rank 2.
CallSchedule schedule_of(int rank, const std::function<void(Meta&, Group&)>& more = {}) {
  Meta meta;
  MetaGroup data(3, rank, "data"), stages(3, rank, "pipeline");
  CallSchedule schedule;
  schedule.follow(data, {0, 1, 2});
  schedule.follow(stages, {0, 1, 2});
  const TraceContextScope trace_context(meta.stream, "layers.1.moe");
  data.all_reduce(meta.stream, meta.tensor({2, 3}));
  const Tensor counts = meta.tensor({3}, DType::i64);
  data.all_to_all(meta.stream, meta.tensor({10, 4}), counts, meta.tensor({5 + rank, 4}), counts);  // rows may differ
  if (rank == 0) stages.send(meta.stream, meta.tensor({4}), 2);
  if (rank == 2) stages.recv(meta.stream, meta.tensor({4}), 0);
  if (more) more(meta, data);
  return schedule;
}

TEST(CallSchedule, HasALaneForEachGroupThatMustAgree) {
  const CallSchedule schedule = schedule_of(0);
  ASSERT_EQ(schedule.lanes().size(), 3u);
  const CallSchedule::Lane& data = schedule.lanes()[0];
  EXPECT_EQ(data.name, "axis data");
  EXPECT_THAT(data.calls, ElementsAre("all_reduce float32 [2, 3]", "all_to_all float32 [0, 4]"));
  EXPECT_EQ(data.places[1], "layers.1.moe");
  EXPECT_EQ(data.hash(), schedule_of(1).lanes()[0].hash());
  EXPECT_EQ(data.id(), schedule_of(1).lanes()[0].id());
  EXPECT_TRUE(schedule.lanes()[1].calls.empty()) << "the pipeline's collectives";
  const CallSchedule::Lane &sent = schedule.lanes()[2], received = schedule_of(2).lanes()[2];
  EXPECT_EQ(sent.name, "axis pipeline, from rank 0 to rank 2");
  EXPECT_THAT(sent.calls, ElementsAre("float32 [4]"));
  EXPECT_EQ(received.hash(), sent.hash());
  EXPECT_EQ(received.id(), sent.id());
}

TEST(CallSchedule, GroupsOfOneRankHaveNoLane) {
  MetaGroup alone(1, 0, "tensor");
  CallSchedule schedule;
  schedule.follow(alone, {5});
  EXPECT_TRUE(schedule.lanes().empty());
}

// The errors of ranks if rank 1 makes another call at the end.
std::string told_on_threads(const std::function<void(Meta&, Group&)>& more_of_1) {
  const std::string said = test::message_of<CommError>([&] {
    on_ranks(3, [&](ThreadRank& rank) {
      const auto usual = [](Meta& meta, Group& data) {
        data.all_gather(meta.stream, meta.tensor({6}), meta.tensor({2}));
      };
      require_same_schedule(rank.stream, *rank.everyone(), schedule_of(rank.rank, rank.rank == 1 ? more_of_1 : usual));
    });
  });
  return said.substr(said.find(": ") + 2);
}

TEST(CallSchedule, NamesTheFirstDifferentCall) {
  EXPECT_EQ(
      told_on_threads([](Meta& meta, Group& data) {
        data.all_gather(meta.stream, meta.tensor({6}, DType::bf16), meta.tensor({2}, DType::bf16));
      }),
      "ranks disagree on the collectives of a step: axis data: call 3 of a step would be all_gather float32 [2] in "
      "layers.1.moe on rank 0, but all_gather bfloat16 [2] in layers.1.moe on rank 1. Start all ranks with the "
      "same program, on devices of the same kind");
  EXPECT_THAT(told_on_threads([](Meta&, Group&) {}),
              HasSubstr("call 3 of a step would be all_gather float32 [2] in layers.1.moe on rank 0, but no further "
                        "call on rank 1"));
}

TEST(CallSchedule, DescribesPartsThatAreSplitDifferently) {
  const auto cut_at = [](int64_t place) {
    return [place](Meta& meta, Group& data) {
      data.reduce_scatter_uneven(meta.stream, meta.tensor({4}), std::vector<int64_t>{0, place, 3, 4});
    };
  };
  const std::string said = test::message_of<CommError>([&] {
    on_ranks(3, [&](ThreadRank& rank) {
      require_same_schedule(rank.stream, *rank.everyone(), schedule_of(rank.rank, cut_at(rank.rank == 1 ? 1 : 2)));
    });
  });
  EXPECT_THAT(said, HasSubstr("call 3 of a step would be reduce_scatter_uneven float32 [4] in uneven parts in "
                              "layers.1.moe on rank 0, but reduce_scatter_uneven float32 [4] in uneven parts in "
                              "layers.1.moe on rank 1; ranks disagree on the sizes of an uneven collective: rank 0 has "
                              "[2, 1, 1], rank 1 [1, 2, 1]; compare their configurations"));
}

TEST(CallSchedule, NamesASendWithoutAReceive) {
  const std::string said = test::message_of<CommError>([&] {
    on_ranks(3, [&](ThreadRank& rank) {
      // Rank 2 does not receive what rank 0 sends.
      require_same_schedule(rank.stream, *rank.everyone(), schedule_of(rank.rank == 2 ? 1 : rank.rank));
    });
  });
  EXPECT_THAT(said, HasSubstr("axis pipeline, from rank 0 to rank 2: rank 0 would make 1 call, first float32 [4] "
                              "in layers.1.moe, and no other rank would make any"));
}

TEST(CallSchedule, ComparesProcesses) {
  const auto run = [](int odd) {
    return on_processes(3, [&](ProcessRank& rank) {
      const auto more = [](Meta& meta, Group& data) { data.barrier(meta.stream); };
      require_same_schedule(rank.stream, *rank.everyone(),
                            schedule_of(rank.rank, rank.rank == odd ? more : std::function<void(Meta&, Group&)>()));
      return "";
    });
  };
  for (const auto& one : run(-1)) EXPECT_EQ(one.code, 0) << one.said;
  for (const auto& one : run(2)) {
    EXPECT_EQ(one.code, static_cast<int>(ExitCode::rank_lost));
    EXPECT_THAT(one.said, HasSubstr("axis data: call 3 of a step would be no further call on rank 0, but barrier in "
                                    "layers.1.moe on rank 2"));
  }
}

using ::testing::HasSubstr;
using testing::on_processes;
using testing::on_ranks;
using testing::ProcessRank;
using testing::ThreadRank;

TEST(SameSettings, NamesTheDifference) {
  const Settings usual = {{"hidden_size", "64"}, {"lr", "0.1"}}, other = {{"hidden_size", "128"}, {"lr", "0.1"}};
  EXPECT_EQ(difference({usual, usual}), "");
  EXPECT_EQ(difference({usual, usual, other, usual}), "hidden_size = 64 on ranks 0, 1, 3, but 128 on rank 2");
  EXPECT_EQ(difference({other, usual, usual}), "hidden_size = 64 on ranks 1, 2, but 128 on rank 0");
  EXPECT_EQ(difference({usual, other}), "hidden_size = 64 on rank 0, but 128 on rank 1") << "the first of several";
  EXPECT_EQ(difference({usual, {{"hidden_size", "64"}}}), "lr = 0.1 on rank 0, but (unknown) on rank 1");
  EXPECT_EQ(difference({{{"hidden_size", "64"}}, usual, usual}), "lr = 0.1 on ranks 1, 2, but (unknown) on rank 0");
  EXPECT_EQ(difference({{{"mesh", ""}}, {{"mesh", "a"}}, {{"mesh", "b"}}}),
            "mesh = \"\" on rank 0, but a on rank 1, b on rank 2");
  const Settings five = {{"a", "1"}, {"b", "1"}, {"c", "1"}, {"d", "1"}, {"e", "1"}};
  EXPECT_THAT(difference({five, {}}), HasSubstr("d = 1 on rank 0, but (unknown) on rank 1; and 1 more"));
}

// Values longer than a word test that texts are joined correctly.
template <class AnyRank>
void compare(AnyRank& rank, int odd) {
  Settings settings = {{"data", "some/folder/with/text.jsonl"}, {"seed", "1234"}};
  if (rank.rank == odd) settings[0].second = "another";
  require_same_settings(rank.stream, *rank.everyone(), settings);
}
const std::string kDiffers =
    "the ranks were started differently: data = some/folder/with/text.jsonl on ranks 0, 2, but another on rank 1. "
    "Start all of them with the same command and configuration";

TEST(SameSettings, RefusesDifferencesBetweenThreads) {
  on_ranks(3, [](ThreadRank& rank) { compare(rank, -1); });
  const std::string said =
      test::message_of<ConfigError>([] { on_ranks(3, [](ThreadRank& rank) { compare(rank, 1); }); });
  EXPECT_EQ(said.substr(said.find(": ") + 2), kDiffers);
}

TEST(SameSettings, RefusesDifferencesBetweenProcesses) {
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

// A rank may learn of another rank's failure by this difference before its own comparison ends. Here rank 1 never
// compares, so it always does.
TEST(SameSettings, IsTheErrorOfRanksThatLearnOfItFromAnother) {
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
