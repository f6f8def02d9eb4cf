// Processes with several ranks each: groups within them and across, and failures of one rank end all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <mutex>
#include <numeric>

#include "support/processes.h"
#include "witan/comm/processes/process_world.h"

namespace witan {
namespace {

using testing::Ended;
using testing::expect_whole;
using testing::free_port;
using ::testing::HasSubstr;
using testing::in_processes;
using testing::kSoon;
using testing::launch_of;
using ::testing::MatchesRegex;
using testing::Rank;

constexpr int kProcesses = 2, kThreads = 3, kRanks = kProcesses * kThreads;

// Runs body(world, rank) on every rank and returns the results in the order of ranks.
std::vector<Ended> on_threads_of_processes(const std::function<std::string(ProcessWorld&, int rank)>& body,
                                           double deadline = 20) {
  const int port = free_port();
  return in_processes(kProcesses, [&](int process) {
    ProcessWorld world(launch_of(process, kProcesses, port), {20, deadline, kThreads});
    std::vector<std::string> said(kRanks);
    world.run([&](int rank) { said[static_cast<size_t>(rank)] = body(world, rank); });
    return std::accumulate(said.begin(), said.end(), std::string());
  });
}

std::vector<int> everyone() {
  std::vector<int> ranks(kRanks);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

TEST(ThreadsOfProcesses, CommunicateInMemoryWithinAndByConnectionsAcrossProcesses) {
  expect_whole(on_threads_of_processes([](ProcessWorld& world, int rank) {
    EXPECT_EQ(world.size(), kRanks);
    EXPECT_EQ(world.local_size(), kRanks) << "all ranks are on this host";
    EXPECT_EQ(world.local_rank(rank), rank);
    EXPECT_TRUE(world.runs(rank));
    EXPECT_FALSE(world.runs((rank + kThreads) % kRanks));
    Rank own(1, 1 << 20);
    const int process = rank / kThreads, thread = rank % kThreads, first = process * kThreads;
    const auto within = world.group(rank, {first, first + 1, first + 2}, "tensor");
    const auto across = world.group(rank, {thread, thread + kThreads}, "replicate");
    const auto all = world.group(rank, everyone(), "data");
    EXPECT_TRUE(within->one_process());
    EXPECT_FALSE(across->one_process());
    EXPECT_FALSE(all->one_process());
    EXPECT_EQ(within->world_rank(1), first + 1);
    for (int i = 0; i < 20; ++i) {
      const Tensor x = own.tensor<int64_t>({2}, {rank, i});
      within->all_reduce(own.stream, x);
      EXPECT_EQ(x.to_vector<int64_t>(), (std::vector<int64_t>{3 * first + 3, 3 * i}));
      across->all_reduce(own.stream, x);
      EXPECT_EQ(x.to_vector<int64_t>(), (std::vector<int64_t>{15, 6 * i}));
      const Tensor y = own.tensor<int64_t>({1}, {rank});
      all->all_reduce(own.stream, y);
      EXPECT_EQ(y.to_vector<int64_t>(), std::vector<int64_t>{15});
    }
    return "";
  }));
}

TEST(ThreadsOfProcesses, OneProcessGoesFirst) {
  const int port = free_port();
  const auto ended = in_processes(kProcesses, [&](int process) {
    ProcessWorld world(launch_of(process, kProcesses, port), {20, 20, kThreads});
    EXPECT_EQ(world.first_rank(), process * kThreads);
    return world.first([&] { return std::to_string(process); }) + world.first([&] { return std::to_string(process); });
  });
  expect_whole(ended);
  for (const Ended& one : ended) EXPECT_EQ(one.said, "00");
}

// The failed rank's process reports its own error, and the other process names the rank that stopped it.
TEST(ThreadsOfProcesses, AnErrorOfAThreadStopsAllRanks) {
  for (const bool within : {true, false}) {
    SCOPED_TRACE(within ? "others wait within their process" : "others wait for all");
    const auto ended = on_threads_of_processes([&](ProcessWorld& world, int rank) {
      Rank own(1, 1 << 20);
      const int first = rank / kThreads * kThreads;
      const auto near = world.group(rank, {first, first + 1, first + 2}, "tensor");
      const auto all = world.group(rank, everyone(), "data");
      all->barrier(own.stream);
      if (rank == 4) throw DataError("the text has come to its end");
      if (within) near->barrier(own.stream);
      all->barrier(own.stream);
      return "";
    });
    EXPECT_EQ(ended[1].code, static_cast<int>(ExitCode::data)) << ended[1].said;
    EXPECT_EQ(ended[1].said, "rank 4: the text has come to its end");
    EXPECT_EQ(ended[0].code, static_cast<int>(ExitCode::rank_lost));
    EXPECT_THAT(
        ended[0].said,
        MatchesRegex("rank [012]: stopped, as rank 4 on .* failed: the text has come to its end(; rank [012] was in "
                     "barrier over axis data)?"));
    for (const Ended& one : ended) EXPECT_LT(one.seconds, kSoon);
  }
}

TEST(ThreadsOfProcesses, AKilledProcessEndsTheOther) {
  const auto ended = on_threads_of_processes([](ProcessWorld& world, int rank) {
    Rank own(1, 1 << 20);
    const int first = rank / kThreads * kThreads;
    const auto near = world.group(rank, {first, first + 1, first + 2}, "tensor");
    const auto all = world.group(rank, everyone(), "data");
    all->barrier(own.stream);
    if (rank == 5) ::raise(SIGKILL);
    if (rank != 0) near->barrier(own.stream);  // only rank 0 polls beyond its process
    all->barrier(own.stream);
    return "";
  });
  EXPECT_TRUE(ended[1].killed);
  EXPECT_EQ(ended[0].code, static_cast<int>(ExitCode::rank_lost));
  EXPECT_THAT(ended[0].said, MatchesRegex("rank [012]: rank [345] on .* is lost: its connection ended(; rank [012] was "
                                          "in barrier over axis data)?"));
  EXPECT_LT(ended[0].seconds, kSoon);
}

TEST(ThreadsOfProcesses, NameDifferentCalls) {
  const auto ended = on_threads_of_processes([](ProcessWorld& world, int rank) {
    Rank own(1, 1 << 20);
    const int first = rank / kThreads * kThreads;
    const auto near = world.group(rank, {first, first + 1, first + 2}, "tensor");
    const auto all = world.group(rank, everyone(), "data");
    near->all_reduce(own.stream, own.stream.zeros({rank == 4 ? 3 : 2}, DType::f32));
    all->barrier(own.stream);
    return "";
  });
  for (const Ended& one : ended) {
    EXPECT_EQ(one.code, static_cast<int>(ExitCode::rank_lost));
    EXPECT_THAT(one.said, HasSubstr("tensor"));
    EXPECT_LT(one.seconds, kSoon);
  }
}

TEST(ThreadsOfProcesses, RefuseDifferentNumbersOfThreads) {
  const int port = free_port();
  const auto ended = in_processes(2, [&](int process) {
    const ProcessWorld world(launch_of(process, 2, port), {3, 3, process == 0 ? 2 : 3});
    return "";
  });
  for (const Ended& one : ended) EXPECT_NE(one.code, 0) << one.said;
}

TEST(ThreadsOfProcesses, RefuseRanksOfOtherProcesses) {
  expect_whole(on_threads_of_processes([](ProcessWorld& world, int rank) {
    Rank own(1, 1 << 20);
    world.group(rank, everyone(), "data")->barrier(own.stream);
    const int other = (rank + kThreads) % kRanks;
    EXPECT_THROW(world.group(other, everyone(), "data"), ConfigError);
    EXPECT_THROW(static_cast<void>(world.local_rank(other)), ConfigError);
    return "";
  }));
}

// A debugger stops a process with all of its ranks, so every rank's silence is tolerated.
TEST(ThreadsOfProcesses, ADebuggerOfOneRankMayHoldItsWholeProcess) {
  const int port = free_port();
  expect_whole(in_processes(kProcesses, [&](int process) -> std::string {
    ProcessWorld world(launch_of(process, kProcesses, port), {20, 20, kThreads, {1}});
    for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(world.hold()->may_hold(rank), rank < kThreads) << rank;
    return world.first([] { return ""; });
  }));
}

}  // namespace
}  // namespace witan
