// Ranks that throw, return, are late, or disagree: all of them end soon with the original error.
#include "witan/comm/threads/threads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "support/message_of.h"
#include "support/thread_world.h"

namespace witan {
namespace {

using test::message_of;
using testing::on_ranks;
using testing::ThreadRank;
using testing::until_failed;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The error of a world whose ranks run `body`, which must come soon, with the error of each rank.
template <class E>
std::string error_of(int ranks, const std::function<void(ThreadRank&)>& body, std::vector<std::string>* told = nullptr,
                     double deadline = 20) {
  ThreadWorld world(ranks, {.deadline_seconds = deadline});
  const auto start = Clock::now();
  if (told) told->assign(static_cast<size_t>(ranks), "");
  const std::string message = message_of<E>([&] {
    on_ranks(world, [&](ThreadRank& rank) {
      try {
        body(rank);
      } catch (const std::exception& error) {
        if (told) (*told)[static_cast<size_t>(rank.rank)] = error.what();
        throw;
      }
    });
  });
  EXPECT_LT(seconds_since(start), 5) << "the failure took too long";
  return message;
}

// Every rank and the caller have the same error.
void expect_all_told(const std::string& message, const std::vector<std::string>& told, const std::string& expected) {
  for (size_t rank = 0; rank < told.size(); ++rank) EXPECT_EQ(told[rank], expected) << "rank " << rank;
  EXPECT_EQ(message.substr(message.find(": ") + 2), expected);
}

TEST(ThreadWorld, RunsEveryRankOnce) {
  ThreadWorld world(3);
  EXPECT_EQ(world.size(), 3);
  std::vector<int> runs(3);
  for (int i = 0; i < 2; ++i) world.run([&](int rank) { ++runs[static_cast<size_t>(rank)]; });
  EXPECT_EQ(runs, (std::vector{2, 2, 2}));
}

// One rank waits for the other while all are stopped for longer than the deadline, as by ^Z.
TEST(ThreadWorld, GoesOnAfterItsProcessWasStopped) {
  constexpr double kDeadline = 1.5;
  constexpr auto kMoment = std::chrono::milliseconds(200);
  const pid_t child = ::fork();
  if (child == 0) {
    ThreadWorld world(2, {.deadline_seconds = kDeadline});
    bool failed = false;
    try {
      on_ranks(world, [&](ThreadRank& rank) {
        if (rank.rank == 1) {
          std::this_thread::sleep_for(kMoment);
          ::raise(SIGSTOP);
          std::this_thread::sleep_for(kMoment);  // the other rank has polled by now
        }
        rank.everyone()->barrier(rank.stream);
      });
    } catch (const std::exception&) {
      failed = true;
    }
    ::_exit(failed ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  EXPECT_TRUE(WIFSTOPPED(status));
  std::this_thread::sleep_for(std::chrono::duration<double>(kDeadline + 1));
  ::kill(child, SIGCONT);
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
      << "a wait that began before the stop ended by its deadline";
}

TEST(ThreadWorld, AThrowingRankStopsTheOthers) {
  std::vector<std::string> told;
  EXPECT_EQ(error_of<DataError>(
                4,
                [](ThreadRank& rank) {
                  const auto group = rank.everyone();
                  group->barrier(rank.stream);
                  if (rank.rank == 2) {
                    std::this_thread::sleep_for(std::chrono::milliseconds(20));
                    throw DataError("no such shard");
                  }
                  group->barrier(rank.stream);
                },
                &told),
            "rank 2: no such shard");
  EXPECT_EQ(told[0], "axis data: stopped, as another rank failed");
  EXPECT_EQ(told[3], told[0]);
}

TEST(ThreadWorld, WaitsInOtherGroupsAndForPeersEndToo) {
  EXPECT_EQ(error_of<ConfigError>(4,
                                  [](ThreadRank& rank) {
                                    const auto pair = rank.world.group(
                                        rank.rank, rank.rank < 2 ? std::vector{0, 1} : std::vector{2, 3}, "expert");
                                    const Tensor x = rank.stream.zeros({4}, DType::f32);
                                    if (rank.rank == 0) throw ConfigError("zero layers");
                                    if (rank.rank == 3) std::this_thread::sleep_for(std::chrono::milliseconds(50));
                                    if (rank.rank == 1) pair->recv(rank.stream, x, 0);
                                    pair->all_reduce(rank.stream, x);
                                    pair->send(rank.stream, x, 1 - pair->rank());
                                  }),
            "rank 0: zero layers");
}

TEST(ThreadWorld, KeepsTheTypeAndTheExitCode) {
  const auto run = [](const std::function<void()>& fail) {
    ThreadWorld(2).run([&](int rank) {
      if (rank == 1) fail();
    });
  };
  EXPECT_EQ(message_of<OutOfMemoryError>([&] { run([] { throw OutOfMemoryError("full"); }); }), "rank 1: full");
  EXPECT_EQ(message_of<OutOfMemoryError>([&] { run([] { throw std::bad_alloc(); }); }),
            "rank 1: the host has no memory left");
  try {
    run([] { throw IoError("cannot write", ExitCode::disk_full); });
    FAIL();
  } catch (const IoError& error) {
    EXPECT_EQ(error.code(), ExitCode::disk_full);
  }
  try {
    run([] { throw std::out_of_range("index"); });
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::internal);
    EXPECT_STREQ(error.what(), "rank 1: index");
  }
  try {
    run([] { throw Error(ExitCode::interrupted, "stopped by a person"); });
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::interrupted);
  }
  EXPECT_EQ(message_of<Error>([&] { run([] { throw 7; }); }), "rank 1: threw something that is not a std::exception");
}

TEST(ThreadWorld, ARanksOwnErrorOutranksLostPeers) {
  // Rank 0 times out first; rank 1's own failure explains why it was late.
  EXPECT_EQ(error_of<DataError>(
                2,
                [](ThreadRank& rank) {
                  const auto group = rank.everyone();
                  if (rank.rank == 1) {
                    until_failed(*group);
                    throw DataError("the disk is slow, and broken");
                  }
                  group->barrier(rank.stream);
                },
                nullptr, 0.1),
            "rank 1: the disk is slow, and broken");
}

TEST(ThreadWorld, NamesALateRank) {
  std::vector<std::string> told;
  const std::string message = error_of<CommError>(
      3,
      [](ThreadRank& rank) {
        const auto group = rank.everyone();
        if (rank.rank == 1) until_failed(*group);
        group->all_reduce(rank.stream, rank.stream.zeros({2, 4}, DType::f32));
      },
      &told, 0.1);
  EXPECT_THAT(message, ::testing::MatchesRegex("rank [02]: axis data: rank 1 did not reach all_reduce float32 "
                                               "\\[2, 4\\] within 0.1 s; rank [02] waited"));
  for (const auto& words : told) EXPECT_EQ("rank " + message.substr(5, 1) + ": " + words, message);
}

TEST(ThreadWorld, NamesALatePeer) {
  EXPECT_EQ(error_of<CommError>(
                2,
                [](ThreadRank& rank) {
                  const auto group = rank.everyone();
                  const Tensor x = rank.stream.zeros({4}, DType::bf16);
                  if (rank.rank == 0) return group->send(rank.stream, x, 1);
                  until_failed(*group);
                },
                nullptr, 0.1),
            "rank 0: axis data: rank 1 did not answer send bfloat16 [4] of rank 0 within 0.1 s");
}

TEST(ThreadWorld, NamesCallSites) {
  const auto error = [](const std::function<void(ThreadRank&, HostGroup&)>& call) {
    return error_of<CommError>(
        2,
        [&](ThreadRank& rank) {
          const auto group = rank.everyone();
          rank.stream.trace_context() = {
              .step = 3 + rank.rank, .phase = TraceContext::Phase::forward, .module = "layers.1.moe"};
          call(rank, *group);
        },
        nullptr, 0.3);
  };
  EXPECT_EQ(error([&](ThreadRank& rank, HostGroup& group) {
              if (rank.rank == 1) until_failed(group);
              group.barrier(rank.stream);
            }),
            "rank 0: axis data: rank 1 did not reach barrier within 0.3 s; rank 0 waited in step 3, forward, "
            "layers.1.moe");
  EXPECT_EQ(error([&](ThreadRank& rank, HostGroup& group) {
              if (rank.rank == 1)
                until_failed(group);
              else
                group.recv(rank.stream, rank.stream.zeros({4}, DType::bf16), 1);
            }),
            "rank 0: axis data: rank 1 did not answer recv bfloat16 [4] of rank 0 in step 3, forward, layers.1.moe "
            "within 0.3 s");
  EXPECT_THAT(
      error([](ThreadRank& rank, HostGroup& group) {
        group.all_reduce(rank.stream, rank.stream.zeros({rank.rank + 1}, DType::f32));
      }),
      ::testing::HasSubstr("rank 1 calls all_reduce float32 [2] in step 4, forward, layers.1.moe, expected as on "
                           "rank 0: all_reduce float32 [1] in step 3, forward, layers.1.moe"));
  EXPECT_THAT(error([](ThreadRank& rank, HostGroup& group) {
                if (rank.rank == 0) group.barrier(rank.stream);
              }),
              ::testing::HasSubstr("rank 1 returned, but rank 0 waits for it in barrier in step 3, forward, "));
}

TEST(ThreadWorld, WaitsForARankThatWaitsForItsDebugger) {
  ThreadWorld world(3, {.deadline_seconds = 0.3, .debug_ranks = {1}});
  ASSERT_NE(world.hold(), nullptr);
  EXPECT_EQ(ThreadWorld(2).hold(), nullptr);
  std::atomic<bool> late = false;
  const std::string said = message_of<CommError>([&] {
    on_ranks(world, [&](ThreadRank& rank) {
      const auto group = rank.everyone();
      if (rank.rank == 1) {
        world.hold()->wait_for_debugger(1, true);
        std::this_thread::sleep_for(std::chrono::milliseconds(600));
        world.hold()->wait_for_debugger(1, false);
      }
      group->barrier(rank.stream);
      world.hold()->wait_for_debugger(2, true);  // this rank was not registered, so nothing waits for it
      late = true;
      if (rank.rank == 1) until_failed(*group);
      group->barrier(rank.stream);
    });
  });
  EXPECT_TRUE(late) << "the first barrier took longer than the deadline";
  EXPECT_THAT(said, ::testing::HasSubstr("rank 1 did not reach barrier within 0.3 s"));
}

TEST(ThreadWorld, DoesNotWaitForARankThatReturned) {
  std::vector<std::string> told;
  const std::string message = error_of<CommError>(3, [](ThreadRank& rank) {
    const auto group = rank.everyone();
    if (rank.rank != 1) group->barrier(rank.stream);
  });
  EXPECT_THAT(message,
              ::testing::MatchesRegex("rank [02]: axis data: rank 1 returned, but rank [02] waits for it in barrier"));
  EXPECT_EQ(error_of<CommError>(2,
                                [](ThreadRank& rank) {
                                  const auto group = rank.everyone();
                                  if (rank.rank == 0) group->recv(rank.stream, rank.stream.zeros({1}, DType::i32), 1);
                                }),
            "rank 0: axis data: rank 0 calls recv int32 [1] from rank 1, which has returned");
}

TEST(ThreadWorld, ReportsDifferentCallsOnEveryRank) {
  std::vector<std::string> told;
  const auto run = [&](int ranks, const std::function<void(ThreadRank&, Group&)>& body) {
    return error_of<CommError>(
        ranks, [&](ThreadRank& rank) { body(rank, *rank.everyone("expert")); }, &told);
  };
  const auto tensor = [](ThreadRank& rank, const Shape& shape, DType dtype = DType::f32) {
    return rank.stream.zeros(shape, dtype);
  };
  std::string message = run(4, [&](ThreadRank& rank, Group& group) {
    if (rank.rank == 2) return group.all_gather(rank.stream, tensor(rank, {8}), tensor(rank, {2}));
    group.all_reduce(rank.stream, tensor(rank, {2}));
  });
  expect_all_told(message, told,
                  "axis expert: rank 2 calls all_gather float32 [2], expected as on rank 0: all_reduce float32 [2]");

  message = run(3, [&](ThreadRank& rank, Group& group) {
    group.all_reduce(rank.stream, tensor(rank, {rank.rank == 1 ? 3 : 2}));
  });
  expect_all_told(message, told,
                  "axis expert: rank 1 calls all_reduce float32 [3], expected as on rank 0: all_reduce float32 [2]");

  message = run(2, [&](ThreadRank& rank, Group& group) {
    group.broadcast(rank.stream, tensor(rank, {2}, rank.rank == 1 ? DType::bf16 : DType::f32), 0);
  });
  expect_all_told(message, told,
                  "axis expert: rank 1 calls broadcast from root 0 bfloat16 [2], expected as on rank 0: broadcast from "
                  "root 0 float32 [2]");

  message = run(2, [&](ThreadRank& rank, Group& group) { group.broadcast(rank.stream, tensor(rank, {2}), rank.rank); });
  expect_all_told(message, told,
                  "axis expert: rank 1 calls broadcast from root 1 float32 [2], expected as on rank 0: broadcast from "
                  "root 0 float32 [2]");

  message = run(2, [&](ThreadRank& rank, Group& group) {
    group.all_reduce(rank.stream, tensor(rank, {2}), rank.rank == 0 ? Reduce::sum : Reduce::max);
  });
  expect_all_told(
      message, told,
      "axis expert: rank 1 calls all_reduce(max) float32 [2], expected as on rank 0: all_reduce float32 [2]");

  message = run(2, [&](ThreadRank& rank, Group& group) {
    if (rank.rank == 0) return group.send(rank.stream, tensor(rank, {2}), 1);
    group.recv(rank.stream, tensor(rank, {3}), 0);
  });
  expect_all_told(message, told, "axis expert: rank 0 calls send float32 [2] to rank 1, which expects float32 [3]");

  message = run(2, [&](ThreadRank& rank, Group& group) {
    if (rank.rank == 0) return group.send(rank.stream, tensor(rank, {2}), 1);
    group.all_reduce(rank.stream, tensor(rank, {2}));
  });
  expect_all_told(message, told,
                  "axis expert: rank 0 calls send float32 [2] to rank 1, which calls all_reduce instead");

  message = run(2, [&](ThreadRank& rank, Group& group) { group.send(rank.stream, tensor(rank, {2}), 1 - rank.rank); });
  EXPECT_THAT(message, ::testing::HasSubstr("at the same time; one of them must receive first"));
  EXPECT_EQ(told[0], told[1]);
}

TEST(ThreadWorld, ReportsWrongCountsOnEveryRank) {
  using Counts = std::vector<int64_t>;
  std::vector<std::string> told;
  const auto exchange = [&](std::vector<Counts> sends, std::vector<Counts> receives, int64_t rows, int64_t capacity) {
    return error_of<CommError>(
        2,
        [&](ThreadRank& rank) {
          const auto r = static_cast<size_t>(rank.rank);
          rank.everyone("expert")->all_to_all(
              rank.stream, rank.stream.zeros({capacity, 3}, DType::f32), rank.tensor<int64_t>({2}, receives[r]),
              rank.stream.zeros({rows, 3}, DType::f32), rank.tensor<int64_t>({2}, sends[r]));
        },
        &told);
  };
  expect_all_told(exchange({{1, 3}, {1, 1}}, {{1, 1}, {2, 1}}, 4, 4), told,
                  "axis expert: all_to_all: rank 0 sends 3 rows to rank 1, which expects 2");
  expect_all_told(exchange({{1, 4}, {1, 1}}, {{1, 1}, {4, 1}}, 4, 5), told,
                  "axis expert: all_to_all: rank 0 sends 4 rows to rank 1, but has only 3 of its 4 left");
  expect_all_told(
      exchange({{1, 3}, {1, 2}}, {{1, 1}, {3, 2}}, 4, 4), told,
      "axis expert: all_to_all: rank 1 receives 2 rows from rank 1, but has room for only 1 of its 4; raise "
      "the capacity");
  expect_all_told(exchange({{-1, 1}, {1, 1}}, {{-1, 1}, {1, 1}}, 4, 4), told,
                  "axis expert: all_to_all: rank 0 sends -1 rows to rank 0, but has only 4 of its 4 left");
  const int64_t huge = std::numeric_limits<int64_t>::max();
  expect_all_told(exchange({{1, huge}, {1, 1}}, {{1, 1}, {huge, 1}}, 4, 4), told,
                  cat("axis expert: all_to_all: rank 0 sends ", huge, " rows to rank 1, but has only 3 of its 4 left"));
}

TEST(ThreadWorld, RefusesRowsOfDifferentShapes) {
  EXPECT_THAT(
      error_of<CommError>(2,
                          [](ThreadRank& rank) {
                            const Tensor counts = rank.stream.zeros({2}, DType::i64);
                            const Tensor x = rank.stream.zeros({4, 3 + rank.rank}, DType::f32);
                            rank.everyone()->all_to_all(rank.stream, rank.stream.empty_like(x), counts, x, counts);
                          }),
      ::testing::HasSubstr("rank 1 calls all_to_all float32 [4, 4], expected as on rank 0: all_to_all float32 [4, 3]"));
}

TEST(ThreadWorld, AShapeErrorOfOneRankIsTheRoot) {
  EXPECT_EQ(
      error_of<ShapeError>(2,
                           [](ThreadRank& rank) {
                             const auto group = rank.everyone();
                             const Tensor in = rank.stream.zeros({rank.rank == 1 ? 3 : 4}, DType::f32);
                             group->reduce_scatter(rank.stream, rank.stream.zeros({2}, DType::f32), in);
                           }),
      "rank 1: reduce_scatter over axis data of 2 ranks: out float32 [2] and in float32 [3] must have one dtype and "
      "row shape, and rows as 1:2");
}

TEST(ThreadWorld, RestartsAfterAFailure) {
  ThreadWorld world(2, {.deadline_seconds = 20});
  std::vector<std::unique_ptr<Group>> old(2);
  EXPECT_THROW(world.run([&](int rank) {
    old[static_cast<size_t>(rank)] = world.group(rank, {0, 1}, "data");
    if (rank == 0) throw DataError("once");
    testing::Rank memory(1);
    old[1]->barrier(memory.stream);
  }),
               DataError);
  on_ranks(world, [&](ThreadRank& rank) {
    EXPECT_EQ(message_of<CommError>([&] { old[static_cast<size_t>(rank.rank)]->barrier(rank.stream); }),
              "axis data: stopped, as another rank failed");
    const Tensor x = rank.tensor<int32_t>({1}, {1});
    rank.everyone()->all_reduce(rank.stream, x);
    EXPECT_EQ(x.data<int32_t>()[0], 2);
  });
}

TEST(ThreadWorld, FailuresAmongTrafficNeverHang) {
  for (int round = 0; round < 60; ++round) {
    ThreadWorld world(4, {.deadline_seconds = 20});
    const auto start = Clock::now();
    EXPECT_EQ(message_of<DataError>([&] {
                on_ranks(world, [&](ThreadRank& rank) {
                  const auto all = rank.everyone();
                  const auto pair =
                      rank.world.group(rank.rank, rank.rank < 2 ? std::vector{0, 1} : std::vector{2, 3}, "expert");
                  const Tensor x = rank.stream.zeros({4096}, DType::f32);
                  for (int call = 0;; ++call) {
                    if (rank.rank == round % 4 && call == 3 + round) throw DataError("now");
                    if (call % 3 == 2) all->all_reduce(rank.stream, x);
                    if (call % 3 == 1) pair->all_reduce(rank.stream, x);
                    if (call % 3 == 0)
                      pair->rank() == 0 ? pair->send(rank.stream, x, 1) : pair->recv(rank.stream, x, 0);
                  }
                });
              }),
              cat("rank ", round % 4, ": now"));
    ASSERT_LT(seconds_since(start), 5);
  }
}

TEST(ThreadWorld, RefusesInvalidWorldsAndGroups) {
  EXPECT_EQ(message_of<ConfigError>([] { ThreadWorld(0); }), "a world has at least one rank, got 0");
  EXPECT_THROW(ThreadWorld(1, {.deadline_seconds = 0}), ConfigError);
  ThreadWorld world(3);
  EXPECT_EQ(message_of<ConfigError>([&] {
              world.group(0, {1, 2}, "data");
            }),
            "axis data: rank 0 is not in the group [1, 2]");
  EXPECT_EQ(message_of<ConfigError>([&] { world.group(0, {0, 3}, "data"); }), "axis data: no rank 3 in a world of 3");
  EXPECT_EQ(message_of<ConfigError>([&] {
              world.group(0, {0, 1, 0}, "data");
            }),
            "axis data: rank 0 appears twice in the group [0, 1, 0]");
}

}  // namespace
}  // namespace witan
