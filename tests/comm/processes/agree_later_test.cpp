// Processes that compare several calls at once: no rank waits for the others in between, and errors name different
// calls as if ranks had compared each call.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <thread>

#include "support/processes.h"
#include "witan/comm/processes/process_group.h"
#include "witan/comm/processes/socket.h"
#include "witan/comm/threads/rendezvous.h"

namespace witan {
namespace {

using testing::Ended;
using testing::expect_whole;
using ::testing::HasSubstr;
using testing::on_processes;
using testing::ProcessRank;
using testing::until_failed;
using Kind = Collective::Kind;

Collective call_of(const Tensor& x, Reduce reduce = Reduce::sum) {
  return {Kind::all_reduce, x, x, {}, {}, reduce};
}

// This avoids ranks that leave while others are still connecting to them, when UCX 1.13 may abort
// (docs/reliability.md).
void connect(ProcessRank& rank, HostGroup& group) {
  group.barrier(rank.stream);
}

// Waits like a rank that waits for its device: it also stops after another rank has failed, whose calls may not have
// arrived before it left.
void wait_for_device(HostGroup& group, double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < end) {
    if (group.failure()->raised()) throw AbortedError("stopped, as another rank failed");
    if (const std::string differs = group.compare_calls(); !differs.empty()) throw CommError(differs);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// The first rank to find out notifies the others; which ranks it has heard of by then, and compares, may differ.
void expect_named(const std::vector<Ended>& ended, const std::vector<std::string>& one_of) {
  size_t named = 0;
  for (const Ended& one : ended) {
    EXPECT_EQ(one.code, static_cast<int>(ExitCode::rank_lost)) << one.said;
    EXPECT_LT(one.seconds, 15);
    named += std::ranges::any_of(one_of,
                                 [&](const std::string& words) { return one.said.find(words) != std::string::npos; });
  }
  EXPECT_GE(named, 1u) << ended[0].said;
}

// Some of the calls synchronise ranks, and some bring data.
TEST(ProcessAgreeLater, EqualCallsSucceed) {
  expect_whole(on_processes(3, [](ProcessRank& rank) {
    const auto group = rank.everyone();
    for (int i = 0; i < 100; ++i) {
      group->agree_later(call_of(rank.stream.zeros({1 + i % 7}, DType::f32)));
      if (i % 23 == 0) group->agree({Kind::barrier, {}, {}, {}, {}});
      if (i % 31 != 0) continue;
      const Tensor x = rank.tensor<float>({1}, {1.0f});
      group->all_reduce(rank.stream, x);
      EXPECT_EQ(x.data<float>()[0], 3);
    }
    group->barrier(rank.stream);
    return "";
  }));
}

// Rank 1 starts when rank 0 is done: if rank 0 waited for it, neither would finish before the deadline.
TEST(ProcessAgreeLater, RanksDoNotWaitInBetween) {
  const testing::ProcessEvent through;
  expect_whole(on_processes(2, [&](ProcessRank& rank) {
    const auto group = rank.everyone();
    group->barrier(rank.stream);
    if (rank.rank == 1) {
      EXPECT_TRUE(through.wait());
    }
    for (size_t i = 0; i + 1 < ProcessGroup::kMostLater; ++i)
      group->agree_later(call_of(rank.stream.zeros({3}, DType::f32)));
    if (rank.rank == 0) through.set();
    group->barrier(rank.stream);
    return "";
  }));
}

TEST(ProcessAgreeLater, NamesADifferentCallAtTheNextSynchronisation) {
  for (const int different : {0, 5, 14, 15, 16, 31}) {  // the last calls of a batch and the first of the next
    SCOPED_TRACE(different);
    expect_named(
        on_processes(3,
                     [&](ProcessRank& rank) {
                       const auto group = rank.everyone();
                       rank.stream.trace_context() = {5, TraceContext::Phase::backward, 1, "layers.3.moe", ""};
                       for (int i = 0; i < 40; ++i) {
                         const Tensor x = rank.stream.zeros({3}, DType::f32);
                         Collective call = call_of(x, rank.rank == 1 && i == different ? Reduce::max : Reduce::sum);
                         call.trace_context = &rank.stream.trace_context();
                         group->agree_later(call);
                       }
                       return "it was not told";
                     }),
        {"axis data: rank 1 calls all_reduce(max) float32 [3] in step 5, backward of micro-batch 1, layers.3.moe, "
         "expected as on rank 0: all_reduce float32 [3] in step 5",
         "axis data: rank 2 calls all_reduce float32 [3] in step 5, backward of micro-batch 1, layers.3.moe, "
         "expected as on rank 1: all_reduce(max) float32 [3] in step 5"});
  }
}

// The devices of the ranks wait for each other in different calls, and no call of the host follows.
TEST(ProcessAgreeLater, NamesADifferentCallWhileAllWaitForTheirDevices) {
  expect_named(
      on_processes(3,
                   [](ProcessRank& rank) {
                     const auto group = rank.everyone();
                     connect(rank, *group);
                     for (int i = 0; i < 5; ++i)
                       group->agree_later(call_of(rank.stream.zeros({rank.rank == 2 && i == 3 ? 4 : 3}, DType::f32)));
                     wait_for_device(*group, 10);
                     return "it was not told";
                   }),
      {"axis data: rank 2 calls all_reduce float32 [4], expected as on rank 0: all_reduce float32 [3]",
       "axis data: rank 2 calls all_reduce float32 [4], expected as on rank 1: all_reduce float32 [3]"});
}

// One rank waits for its device in a call that differs, while the others have gone on to synchronise.
TEST(ProcessAgreeLater, NamesADifferentCallWhileSomeWaitForTheirDevice) {
  expect_named(
      on_processes(3,
                   [](ProcessRank& rank) {
                     const auto group = rank.everyone();
                     connect(rank, *group);
                     for (int i = 0; i < 5; ++i)
                       group->agree_later(call_of(rank.stream.zeros({rank.rank == 1 && i == 4 ? 4 : 3}, DType::f32)));
                     if (rank.rank == 1) wait_for_device(*group, 10);
                     for (int i = 0; i < 30; ++i) group->agree_later(call_of(rank.stream.zeros({3}, DType::f32)));
                     return "it was not told";
                   }),
      {"axis data: rank 1 calls all_reduce float32 [4], expected as on rank 0: all_reduce float32 [3]",
       "axis data: rank 2 calls all_reduce float32 [3], expected as on rank 1: all_reduce float32 [4]"});
}

TEST(ProcessAgreeLater, NamesARankThatStaysAway) {
  const auto ended = on_processes(2,
                                  [](ProcessRank& rank) {
                                    const auto group = rank.everyone();
                                    for (int i = 0; i < 40; ++i) {
                                      if (rank.rank == 1 && i == 20) until_failed(*group);
                                      group->agree_later(call_of(rank.stream.zeros({3}, DType::f32)));
                                    }
                                    return "it was not told";
                                  },
                                  {20, 2});
  EXPECT_EQ(ended[0].code, static_cast<int>(ExitCode::rank_lost)) << ended[0].said;
  EXPECT_THAT(ended[0].said, HasSubstr("rank 1 did not reach all_reduce float32 [3] within 2 s; rank 0 waited"));
}

// Ranks that repeatedly wait for long do not flood a busy rank with messages.
TEST(ProcessAgreeLater, LongWaitsDoNotFloodARank) {
  expect_whole(on_processes(2, [](ProcessRank& rank) {
    const auto group = rank.everyone();
    for (int i = 0; i < 60; ++i) {
      if (rank.rank == 1 && i % 20 == 0)
        std::this_thread::sleep_for(std::chrono::milliseconds(400));  // without reading anything
      group->agree_later(call_of(rank.stream.zeros({3}, DType::f32)));
      if (rank.rank == 0) wait_for_device(*group, 0.01);
    }
    group->barrier(rank.stream);
    return "";
  }));
}

}  // namespace
}  // namespace witan
