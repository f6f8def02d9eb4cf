// Real processes on this machine: whatever happens to one of them, the others end soon and name it.
#include "witan/comm/processes/process_world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <thread>

#include "support/processes.h"
#include "witan/comm/checks/fingerprint.h"
#include "witan/comm/processes/pending_connections.h"

namespace witan {
namespace {

using ::testing::AnyOf;
using testing::Ended;
using testing::expect_whole;
using testing::free_port;
using ::testing::HasSubstr;
using testing::in_processes;
using testing::kSoon;
using testing::launch_of;
using ::testing::MatchesRegex;
using testing::on_processes;
using testing::ProcessEvent;
using testing::ProcessRank;
using testing::stop_for;
using testing::until_failed;
using Kind = Collective::Kind;

TEST(ProcessWorld, SubgroupsWorkConcurrently) {
  expect_whole(on_processes(4, [](ProcessRank& rank) {
    const int half = rank.rank / 2, parity = rank.rank % 2;
    const auto pair = rank.world.group(rank.rank, {2 * half, 2 * half + 1}, "expert");
    const auto across = rank.world.group(rank.rank, {2 + parity, parity}, "replicate");
    EXPECT_EQ(across->rank(), half == 0 ? 1 : 0);
    EXPECT_EQ(across->world_rank(0), 2 + parity);
    EXPECT_FALSE(across->one_process());
    EXPECT_EQ(across->deadline().seconds, 20);
    // A second thread of each process works in its own group.
    std::thread saver([&, group = rank.everyone("checkpoint")] {
      testing::Rank own(1, 1 << 20);
      for (int i = 0; i < 50; ++i) {
        const Tensor x = own.tensor<int64_t>({2}, {rank.rank, i});
        group->all_reduce(own.stream, x);
        EXPECT_EQ(x.to_vector<int64_t>(), (std::vector<int64_t>{6, 4 * i}));
      }
    });
    for (int i = 0; i < 50; ++i) {
      const Tensor x = rank.tensor<float>({1}, {static_cast<float>(rank.rank)});
      pair->all_reduce(rank.stream, x);
      across->all_reduce(rank.stream, x);
      EXPECT_EQ(x.to_vector<float>(), std::vector<float>{6});
      across->agree({Kind::all_reduce, x, x, {}, {}});
    }
    saver.join();
    EXPECT_EQ(rank.world.local_size(), 4);
    EXPECT_EQ(rank.world.local_rank(rank.rank), rank.rank);
    EXPECT_TRUE(ranks_that_differ(rank.stream, *pair, rank.stream.zeros({4}, DType::f32)).empty());
    return "";
  }));
}

TEST(ProcessWorld, RankZeroGoesFirst) {
  const auto ended = on_processes(3, [](ProcessRank& rank) {
    std::string all;
    for (int i = 0; i < 10; ++i) all += rank.world.first([&] { return std::to_string(rank.rank) + "!"; });
    return all;
  });
  expect_whole(ended);
  for (const Ended& one : ended) EXPECT_EQ(one.said, "0!0!0!0!0!0!0!0!0!0!");
}

TEST(ProcessWorld, AKilledRankEndsTheOthers) {
  const std::array<ProcessEvent, 4> left;  // the barrier
  const auto ended = on_processes(4, [&](ProcessRank& rank) {
    const auto group = rank.everyone();
    group->barrier(rank.stream);
    left[static_cast<size_t>(rank.rank)].set();
    if (rank.rank == 2) {
      for (const ProcessEvent& one : left) EXPECT_TRUE(one.wait());
      ::raise(SIGKILL);
    }
    if (rank.rank == 3) until_failed(*group);
    rank.stream.trace_context() = {5, TraceContext::Phase::backward, 1, "layers.3.moe", "combine"};
    group->all_reduce(rank.stream, rank.stream.zeros({10}, DType::f32));
    return "";
  });
  EXPECT_TRUE(ended[2].killed);
  for (const int rank : {0, 1, 3}) {
    const Ended& one = ended[static_cast<size_t>(rank)];
    EXPECT_EQ(one.code, static_cast<int>(ExitCode::rank_lost));
    EXPECT_THAT(one.said,
                MatchesRegex("rank " + std::to_string(rank) +
                             ": rank 2 on .* is lost: its connection ended; rank . was in all_reduce float32 .10. "
                             "over axis data, in step 5, backward of micro-batch 1, layers.3.moe .combine."));
    EXPECT_LT(one.seconds, kSoon);
  }
}

TEST(ProcessWorld, AStoppedRankIsNamedAtTheDeadline) {
  constexpr double kDeadline = 2, kStopped = 3;
  const auto ended = on_processes(4,
                                  [](ProcessRank& rank) {
                                    // Pairs are 0 and 1, 2 and 3; then 0 and 2, 1 and 3.
                                    const int half = rank.rank / 2, parity = rank.rank % 2;
                                    const auto pair = rank.world.group(rank.rank, {2 * half, 2 * half + 1}, "expert");
                                    const auto across = rank.world.group(rank.rank, {parity, 2 + parity}, "replicate");
                                    pair->barrier(rank.stream);
                                    across->barrier(rank.stream);
                                    if (rank.rank == 2) stop_for(kStopped);
                                    pair->barrier(rank.stream);
                                    across->barrier(rank.stream);
                                    // Rank 2 may find the messages of ranks 0 and 3 for those calls before it learns
                                    // that they left.
                                    pair->barrier(rank.stream);
                                    return "";
                                  },
                                  {20, kDeadline});
  for (const int rank : {0, 1, 3}) {
    const Ended& one = ended[static_cast<size_t>(rank)];
    EXPECT_EQ(one.code, static_cast<int>(ExitCode::rank_lost));
    EXPECT_THAT(one.said, MatchesRegex("rank " + std::to_string(rank) +
                                       ": rank 2 on .* is lost: no heartbeat for .* s; its process is "
                                       "stopped or the network to it is cut.*"))
        << "rank 1 waits for rank 0 and 3 for 2, and 2 is named";
    EXPECT_LT(one.seconds, kDeadline + kSoon);
  }
  EXPECT_EQ(ended[2].code, static_cast<int>(ExitCode::rank_lost)) << "it ends after it is continued";
  EXPECT_LT(ended[2].seconds, kStopped + kSoon);
}

// A slow rank is waited for; a rank that is lost or stopped meanwhile is not.
TEST(ProcessWorld, ALongerGroupDeadlineCoversOnlyHealthyRanks) {
  const auto work = [](const std::function<void()>& of_rank_1) {
    return [of_rank_1](ProcessRank& rank) {
      const auto group = rank.everyone();
      group->barrier(rank.stream);
      const DeadlineScope patience(*group, {60, {}});
      if (rank.rank == 1) of_rank_1();
      const Tensor x = rank.tensor<int64_t>({1}, {rank.rank});
      const Tensor all = rank.stream.zeros({3}, DType::i64);
      group->all_gather(rank.stream, all, x);
      rank.rank == 2 ? group->recv(rank.stream, x, 1) : rank.rank == 1 ? group->send(rank.stream, x, 2) : void();
      group->broadcast(rank.stream, x, 1);
      return "";
    };
  };
  constexpr double kDeadline = 2;
  expect_whole(
      on_processes(3, work([] { std::this_thread::sleep_for(std::chrono::milliseconds(2500)); }), {20, kDeadline}));
  const auto killed = on_processes(3, work([] {
                                     std::this_thread::sleep_for(std::chrono::milliseconds(500));
                                     ::raise(SIGKILL);
                                   }),
                                   {20, kDeadline});
  const auto stopped = on_processes(3, work([] { stop_for(4); }), {20, kDeadline});
  for (const size_t other : {0, 2}) {
    EXPECT_EQ(killed[other].code, static_cast<int>(ExitCode::rank_lost));
    EXPECT_THAT(killed[other].said, MatchesRegex("rank .: rank 1 on .* is lost: its connection ended.*"));
    EXPECT_LT(killed[other].seconds, 0.5 + kSoon);
    EXPECT_THAT(stopped[other].said, MatchesRegex("rank .: rank 1 on .* is lost: no heartbeat for .*"));
    EXPECT_LT(stopped[other].seconds, kDeadline + kSoon);
  }
}

TEST(ProcessWorld, AGroupDeadlineEndsItsCallsWithItsMessage) {
  const auto ended = on_processes(3, [](ProcessRank& rank) {
    const auto group = rank.everyone();
    group->barrier(rank.stream);
    const DeadlineScope patience(*group, {1, [](const std::string& who) { return "no news of " + who; }});
    if (rank.rank == 1) until_failed(*group);
    const Tensor all = rank.stream.zeros({3}, DType::i64);
    group->all_gather(rank.stream, all, rank.tensor<int64_t>({1}, {rank.rank}));
    return "";
  });
  // The first rank to give up ends rank 1's wait, of which another may hear before its own deadline.
  EXPECT_TRUE(std::ranges::any_of(
      ended, [](const Ended& one) { return one.said.find("no news of rank 1") != std::string::npos; }));
  for (const Ended& one : ended) {
    EXPECT_EQ(one.code, static_cast<int>(ExitCode::rank_lost));
    EXPECT_THAT(one.said, AnyOf(HasSubstr("no news of rank 1"), HasSubstr("rank 1 returned")));
    EXPECT_LT(one.seconds, 2.5 + kSoon);
  }
}

TEST(ProcessWorld, AStoppedRankIsNoticedWithoutAWaitingCall) {
  const int port = free_port();
  const auto waiting = in_processes(2, [&](int rank) -> std::string {
    ProcessWorld world(launch_of(rank, 2, port), {20, 2});
    return world.first([] {
      stop_for(3);
      return "";
    });
  });
  EXPECT_EQ(waiting[1].code, static_cast<int>(ExitCode::rank_lost));
  EXPECT_THAT(waiting[1].said, HasSubstr("is lost: no heartbeat for"));
  EXPECT_LT(waiting[1].seconds, 2 + kSoon);
}

TEST(ProcessWorld, BusyRanksAndJobsThatWereStoppedGoOn) {
  expect_whole(on_processes(3,
                            [](ProcessRank& rank) {
                              const auto group = rank.everyone();
                              group->barrier(rank.stream);
                              if (rank.rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2300));
                              return "";
                            },
                            {20, 2}));
  expect_whole(on_processes(3,
                            [](ProcessRank& rank) {
                              const auto group = rank.everyone();
                              group->barrier(rank.stream);
                              stop_for(2.5);
                              group->barrier(rank.stream);
                              return "";
                            },
                            {20, 2}));
}

TEST(ProcessWorld, WaitsForARankKilledAfterMeetingAreShort) {
  const int port = free_port();
  const auto ended = in_processes(4, [&](int rank) -> std::string {
    if (rank != 2) {
      ProcessWorld world(launch_of(rank, 4, port), {20, 20});
      return world.first([] {
        std::this_thread::sleep_for(std::chrono::seconds(30));
        return "";
      });
    }
    // A process that meets rank 0 and then stays silent.
    const Socket listener = listen_at({"127.0.0.1", 0});
    std::string why;
    const Member self{2, 4, "test", "here", local_end(listener).port};
    const auto first = introduce(testing::connected_to_zero(port), {"127.0.0.1", port}, self, 0, deadline_in(5), why);
    wait_readable(first->socket, 5);  // all ranks have met
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    ::raise(SIGKILL);
    return "";
  });
  EXPECT_TRUE(ended[2].killed);
  for (const int rank : {0, 1, 3}) {
    EXPECT_EQ(ended[static_cast<size_t>(rank)].said, "rank 2 on here is lost: its connection ended");
    EXPECT_EQ(ended[static_cast<size_t>(rank)].code, static_cast<int>(ExitCode::rank_lost));
    EXPECT_LT(ended[static_cast<size_t>(rank)].seconds, kSoon);
  }
}

TEST(ProcessWorld, AnErrorNamesItsRankAndStopsTheOthers) {
  const auto ended = on_processes(3, [](ProcessRank& rank) -> std::string {
    const auto group = rank.everyone();
    group->barrier(rank.stream);
    if (rank.rank == 1) throw DataError("no such shard");
    const auto word = std::make_shared<std::atomic<uint32_t>>(0);
    group->failure()->watch(word);
    try {
      group->barrier(rank.stream);
    } catch (const CommError&) {
      while (word->load() == 0) std::this_thread::yield();  // a polling device ends too
      throw;
    }
    return "";
  });
  EXPECT_EQ(ended[1].code, static_cast<int>(ExitCode::data));
  EXPECT_EQ(ended[1].said, "rank 1: no such shard");
  for (const size_t rank : {0, 2}) {
    EXPECT_EQ(ended[rank].code, static_cast<int>(ExitCode::rank_lost));
    EXPECT_THAT(ended[rank].said,
                MatchesRegex("rank [02]: stopped, as rank 1 on .* failed: no such shard; rank [02] was in barrier "
                             "over axis data"));
    EXPECT_LT(ended[rank].seconds, kSoon);
  }
}

TEST(ProcessWorld, ErrorsOutsideOfGroupsAreReported) {
  const int port = free_port();
  const auto ended = in_processes(2, [&](int rank) -> std::string {
    ProcessWorld world(launch_of(rank, 2, port), {20, 20});
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));  // until rank 0 is in its call
      throw ConfigError("zero layers");
    }
    world.first([] { return ""; });
    return "";
  });
  EXPECT_EQ(ended[1].code, static_cast<int>(ExitCode::config));
  EXPECT_EQ(ended[0].code, static_cast<int>(ExitCode::rank_lost));
  EXPECT_THAT(ended[0].said, MatchesRegex("stopped, as rank 1 on .* failed"));
}

// With every engine, messages that a rank sent before it left are received, and missing ones are not waited for.
TEST(ProcessWorld, MessagesSentBeforeLeavingArrive) {
  const auto ended = on_processes(3, [](ProcessRank& rank) -> std::string {
    if (rank.rank == 0) return "";
    const auto pair = rank.world.group(rank.rank, {1, 2}, "pipeline");
    const Tensor tensor = rank.stream.zeros({4}, DType::f32);
    std::ranges::fill(tensor.span<float>(), static_cast<float>(rank.rank));
    if (rank.rank == 2) {
      pair->send(rank.stream, tensor, 0);
      return "";
    }
    pair->recv(rank.stream, tensor, 1);
    EXPECT_EQ(tensor.span<float>()[3], 2);
    pair->recv(rank.stream, tensor, 1);
    return "";
  });
  EXPECT_EQ(ended[2].code, 0);
  EXPECT_THAT(ended[1].said, HasSubstr("which has returned"));
  EXPECT_LT(ended[1].seconds, kSoon);
}

// A rank held by a debugger is stopped for longer than ranks wait or may be silent. No rank is lost, neither those that
// wait for it nor those that wait for them without a connection to it.
TEST(ProcessWorld, ADebuggersHoldIsKnownThroughRankZero) {
  constexpr double kDeadline = 2.5;
  expect_whole(on_processes(4,
                            [](ProcessRank& rank) -> std::string {
                              const auto all = rank.everyone();
                              if (rank.rank == 3) stop_for(3 * kDeadline);
                              const int from = rank.rank + 1, to = rank.rank - 1;
                              const Tensor token = rank.stream.zeros({1}, DType::f32);
                              if (from < 4) all->recv(rank.stream, token, from);
                              if (to >= 0) all->send(rank.stream, token, to);
                              return "";
                            },
                            {20, kDeadline, 1, {3}}));
}

// The errors of all ranks for these calls.
std::string words_of(int ranks, const std::function<void(ProcessRank&, HostGroup&)>& call, double deadline = 20) {
  const auto ended = on_processes(ranks,
                                  [&](ProcessRank& rank) {
                                    call(rank, *rank.everyone("expert"));
                                    return "";
                                  },
                                  {20, deadline});
  std::string words;
  for (const Ended& one : ended) {
    if (one.code == 0) continue;
    EXPECT_EQ(one.code, static_cast<int>(ExitCode::rank_lost));
    const std::string own = one.said.substr(one.said.find(": ") + 2);
    if (words.empty()) words = own;
    EXPECT_EQ(own, words) << "every rank has the same error";
    EXPECT_LT(one.seconds, kSoon);
  }
  return words;
}

TEST(ProcessWorld, NamesDifferentCalls) {
  EXPECT_EQ(words_of(3,
                     [](ProcessRank& rank, HostGroup& group) {
                       const Tensor x = rank.stream.zeros({rank.rank == 2 ? 4 : 3}, DType::f32);
                       group.agree({Kind::all_reduce, x, x, {}, {}});
                     }),
            "axis expert: rank 2 calls all_reduce float32 [4], expected as on rank 0: all_reduce float32 [3]");
  EXPECT_EQ(words_of(2,
                     [](ProcessRank& rank, HostGroup& group) {
                       const Tensor x = rank.stream.zeros({4, 2}, DType::f32);
                       group.all_to_all(rank.stream, rank.stream.zeros({4, 2}, DType::f32),
                                        rank.tensor<int64_t>({2}, {1, 1}), x,
                                        rank.tensor<int64_t>({2}, {1, 2 - rank.rank}));
                     }),
            "axis expert: all_to_all: rank 0 sends 2 rows to rank 1, which expects 1");
  EXPECT_EQ(words_of(2,
                     [](ProcessRank& rank, HostGroup& group) {
                       const Tensor x = rank.stream.zeros({4 + rank.rank}, DType::f32);
                       rank.rank == 0 ? group.send(rank.stream, x, 1) : group.recv(rank.stream, x, 0);
                     }),
            "axis expert: rank 0 calls send float32 [4] to rank 1, which expects float32 [5]");
  EXPECT_EQ(words_of(2,
                     [](ProcessRank& rank, HostGroup& group) {
                       const Tensor x = rank.stream.zeros({4}, DType::i32);
                       rank.rank == 0 ? group.recv(rank.stream, x, 1) : group.all_reduce(rank.stream, x);
                     }),
            "axis expert: rank 0 calls recv int32 [4] from rank 1, which calls all_reduce instead");
  EXPECT_THAT(
      words_of(2, [](ProcessRank& rank,
                     HostGroup& group) { group.send(rank.stream, rank.stream.zeros({4}, DType::i32), 1 - rank.rank); }),
      MatchesRegex("axis expert: rank . calls send int32 .4. to rank ., which sends to rank . at the same "
                   "time; one of them must receive first"));
}

// Engines that match data by tag compare calls only after ranks have waited.
TEST(ProcessWorld, NamesDifferentCallsThatMoveData) {
  EXPECT_EQ(words_of(3,
                     [](ProcessRank& rank, HostGroup& group) {
                       group.all_reduce(rank.stream, rank.stream.zeros({rank.rank == 1 ? 4 : 3}, DType::f32));
                     }),
            "axis expert: rank 1 calls all_reduce float32 [4], expected as on rank 0: all_reduce float32 [3]");
  EXPECT_EQ(words_of(3,
                     [](ProcessRank& rank, HostGroup& group) {
                       const Tensor x = rank.stream.zeros({6}, DType::f32);
                       rank.rank == 2 ? group.barrier(rank.stream) : group.all_reduce(rank.stream, x, Reduce::max);
                     }),
            "axis expert: rank 2 calls barrier, expected as on rank 0: all_reduce(max) float32 [6]");
  EXPECT_EQ(words_of(3,
                     [](ProcessRank& rank, HostGroup& group) {
                       const Tensor x = rank.stream.zeros({6}, DType::f32), y = rank.stream.zeros({6}, DType::f32);
                       rank.rank == 0 ? group.all_to_all_equal(rank.stream, y, x)
                                      : group.all_gather(rank.stream, y, x.narrow(0, 0, 2));
                     }),
            "axis expert: rank 1 calls all_gather float32 [2], expected as on rank 0: all_to_all_equal float32 [6]");
}

// Rank 1's own rows fit, so it goes on and returns while the other two find the difference.
TEST(ProcessWorld, NamesAnExchangeThatDiffersBetweenTwoRanks) {
  const auto words = on_processes(3, [](ProcessRank& rank) {
    const auto group = rank.everyone();
    const Tensor x = rank.stream.zeros({6, 2}, DType::f32), y = rank.stream.zeros({6, 2}, DType::f32);
    const int64_t to_two = rank.rank == 0 ? 2 : 1;
    group->all_to_all(rank.stream, y, rank.tensor<int64_t>({3}, {1, 1, 1}), x,
                      rank.tensor<int64_t>({3}, {1, 1, to_two}));
    return std::string("whole");
  });
  for (const int rank : {0, 2})
    EXPECT_THAT(words[static_cast<size_t>(rank)].said,
                HasSubstr("all_to_all: rank 0 sends 2 rows to rank 2, which expects 1"));
}

TEST(ProcessWorld, NamesRowsThatARankDoesNotHave) {
  EXPECT_EQ(
      words_of(
          2,
          [](ProcessRank& rank, HostGroup& group) {
            const Tensor x = rank.stream.zeros({2, 2}, DType::f32), y = rank.stream.zeros({9, 2}, DType::f32);
            group.all_to_all(rank.stream, y, rank.tensor<int64_t>({2}, {2, 2}), x, rank.tensor<int64_t>({2}, {2, 2}));
          }),
      "axis expert: all_to_all: rank 0 sends 2 rows to rank 1, but has only 0 of its 2 left");
}

// Waiting ranks ask what the late rank calls. It does not need the question, and later calls must not read it as
// theirs.
TEST(ProcessWorld, AskingALateRankDoesNotDisturbLaterCalls) {
  const auto ended = on_processes(3, [](ProcessRank& rank) {
    const auto group = rank.everyone();
    Stream& stream = rank.stream;
    const int next = (rank.rank + 1) % 3, before = (rank.rank + 2) % 3;
    double sum = 0;
    for (int late = 0; late < 3; ++late) {
      if (rank.rank == late) std::this_thread::sleep_for(std::chrono::milliseconds(900));
      const Tensor x = rank.tensor<float>({2}, {1.0f + static_cast<float>(rank.rank), 2});
      group->all_reduce(stream, x);
      sum += x.data<float>()[0];
      const Tensor got = stream.zeros({2}, DType::f32);
      rank.rank == 0 ? (group->send(stream, x, next), group->recv(stream, got, before))
                     : (group->recv(stream, got, before), group->send(stream, x, next));
      sum += got.data<float>()[1];
      if (late == 1) group->barrier(stream);
      const Tensor all = stream.zeros({3}, DType::f32);
      group->all_gather(stream, all, rank.tensor<float>({1}, {static_cast<float>(rank.rank)}));
      sum += all.data<float>()[2];
    }
    return std::to_string(sum);
  });
  expect_whole(ended);
  for (const Ended& one : ended) EXPECT_EQ(one.said, std::to_string(3 * (6.0 + 6.0 + 2.0)));
}

TEST(ProcessWorld, NamesCallSites) {
  const std::vector<std::string> modules = {"layers.0.moe", "layers.1.attention"};
  const auto go_to = [&](ProcessRank& rank) {
    rank.stream.trace_context() = {3 + rank.rank, TraceContext::Phase::forward, 1,
                                   modules[static_cast<size_t>(rank.rank)]};
  };
  EXPECT_EQ(words_of(2,
                     [&](ProcessRank& rank, HostGroup& group) {
                       go_to(rank);
                       group.all_reduce(rank.stream, rank.stream.zeros({rank.rank + 1}, DType::f32));
                     }),
            "axis expert: rank 1 calls all_reduce float32 [2] in step 4, forward of micro-batch 1, layers.1.attention, "
            "expected as on rank 0: all_reduce float32 [1] in step 3, forward of micro-batch 1, layers.0.moe");
  EXPECT_EQ(words_of(2,
                     [&](ProcessRank& rank, HostGroup& group) {
                       go_to(rank);
                       const Tensor x = rank.stream.zeros({4 + rank.rank}, DType::f32);
                       rank.rank == 0 ? group.send(rank.stream, x, 1) : group.recv(rank.stream, x, 0);
                     }),
            "axis expert: rank 0 calls send float32 [4] in step 3, forward of micro-batch 1, layers.0.moe to rank 1, "
            "which expects float32 [5] in step 4, forward of micro-batch 1, layers.1.attention");
  EXPECT_EQ(words_of(
                2,
                [&](ProcessRank& rank, HostGroup& group) {
                  go_to(rank);
                  if (rank.rank == 1) until_failed(group);
                  group.barrier(rank.stream);
                },
                0.3),
            "axis expert: rank 1 did not reach barrier within 0.3 s; rank 0 waited in step 3, forward of micro-batch "
            "1, layers.0.moe");
}

// A stop replaces the debugger here: the process stays silent. Rank 1 waits for rank 0, which waits for the process.
TEST(ProcessWorld, WaitsForARankHeldByADebugger) {
  constexpr double kDeadline = 2, kStopped = 4;
  expect_whole(on_processes(3,
                            [](ProcessRank& rank) {
                              const auto group = rank.everyone();
                              group->barrier(rank.stream);
                              if (rank.rank == 2) stop_for(kStopped);
                              group->all_reduce(rank.stream, rank.stream.zeros({10}, DType::f32));
                              return "";
                            },
                            {20, kDeadline, 1, {2}}));
  // The rank waits for its debugger and then makes a different call; the others are not held up forever.
  const auto ended = on_processes(2,
                                  [](ProcessRank& rank) {
                                    const auto group = rank.everyone();
                                    group->barrier(rank.stream);
                                    if (rank.rank == 1) {
                                      rank.world.hold()->wait_for_debugger(1, true);
                                      std::this_thread::sleep_for(std::chrono::milliseconds(1000));
                                      rank.world.hold()->wait_for_debugger(1, false);
                                      until_failed(*group);
                                    }
                                    group->barrier(rank.stream);
                                    return "";
                                  },
                                  {20, 0.5, 1, {1}});
  EXPECT_THAT(ended[0].said, HasSubstr("rank 1 did not reach barrier within 0.5 s"));
  EXPECT_GT(ended[0].seconds, 1.0);
}

TEST(ProcessWorld, NamesLateRanksAndRanksThatReturned) {
  EXPECT_EQ(words_of(
                2,
                [](ProcessRank& rank, HostGroup& group) {
                  if (rank.rank == 1) until_failed(group);
                  group.barrier(rank.stream);
                },
                0.3),
            "axis expert: rank 1 did not reach barrier within 0.3 s; rank 0 waited");
  EXPECT_EQ(words_of(2,
                     [](ProcessRank& rank, HostGroup& group) {
                       if (rank.rank == 0) group.barrier(rank.stream);
                     }),
            "axis expert: rank 1 returned, but rank 0 waits for it in barrier");
}

// The part of an error that fits into a message is sent.
TEST(ProcessWorld, ReportsVeryLongErrors) {
  const auto ended = on_processes(3, [](ProcessRank& rank) {
    const auto group = rank.everyone();
    group->barrier(rank.stream);
    if (rank.rank == 1) throw DataError("row 7 is broken: " + std::string(100'000, 'x'));
    group->barrier(rank.stream);
    return "";
  });
  EXPECT_EQ(ended[1].code, static_cast<int>(ExitCode::data));
  for (const size_t rank : {0, 2}) {
    EXPECT_EQ(ended[rank].code, static_cast<int>(ExitCode::rank_lost));
    EXPECT_THAT(ended[rank].said, HasSubstr("failed: row 7 is broken: xxxx"));
    EXPECT_LT(ended[rank].said.size(), 10'000u);
  }
}

}  // namespace
}  // namespace witan
