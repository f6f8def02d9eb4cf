#include "witan/comm/peers/host_words.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "support/processes.h"
#include "support/thread_world.h"

namespace witan {
namespace {

using testing::Ended;
using testing::expect_whole;
using testing::in_processes;
using testing::launch_of;
using testing::on_processes;
using testing::on_ranks;
using testing::ProcessRank;
using testing::ThreadRank;

using Clock = std::chrono::steady_clock;
constexpr double kLong = 20, kShort = 0.05;  // s

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// The rank `late` sets its word after the others, which wait for it.
void wait_for_the_last(HostGroup& group, int late) {
  const auto words = HostWords::make(group);
  ASSERT_NE(words, nullptr);
  const auto meet = [&] { group.agree({Collective::Kind::barrier, {}, {}, {}, {}}); };
  if (group.rank() == late) {
    meet();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // most others are waiting by now
    words->set();
    EXPECT_TRUE(words->await_all(kLong));
    return;
  }
  EXPECT_FALSE(words->await_all(0));
  words->set();
  meet();
  const auto begin = Clock::now();
  EXPECT_TRUE(words->await_all(kLong));
  EXPECT_LT(seconds_since(begin), kLong / 2) << "it returns as soon as all words are set";
}

TEST(HostWords, ThreadsWaitForEachOther) {
  for (const int ranks : {1, 2, 5})
    on_ranks(ranks, [&](ThreadRank& rank) { wait_for_the_last(*rank.everyone(), ranks - 1); });
}

TEST(HostWords, ProcessesWaitForEachOther) {
  for (const int late : {0, 2})
    expect_whole(on_processes(3, [&](ProcessRank& rank) {
      wait_for_the_last(*rank.everyone(), late);
      return "";
    }));
}

TEST(HostWords, ThreadsOfProcessesWaitForEachOther) {
  const int port = testing::free_port();
  expect_whole(in_processes(2, [&](int process) {
    ProcessWorld world(launch_of(process, 2, port), {20, 20, 2});
    world.run([&](int rank) { wait_for_the_last(*world.group(rank, {0, 1, 2, 3}, "data"), 3); });
    return "";
  }));
}

TEST(HostWords, GroupsHaveTheirOwnWords) {
  on_ranks(2, [](ThreadRank& rank) {
    const auto group = rank.everyone();
    const auto some = HostWords::make(*group), others = HostWords::make(*group);
    some->set();
    EXPECT_TRUE(some->await_all(kLong));
    EXPECT_FALSE(others->await_all(0));
    group->barrier(rank.stream);
  });
}

// A killed process cannot report its end, but others must not wait for it forever.
TEST(HostWords, WaitsForKilledProcessesAreShort) {
  const auto ended = on_processes(3, [](ProcessRank& rank) {
    const auto words = HostWords::make(*rank.everyone());
    if (rank.rank == 1) ::raise(SIGKILL);
    words->set();
    const auto begin = Clock::now();
    EXPECT_FALSE(words->await_all(kShort));
    EXPECT_GE(seconds_since(begin), kShort);
    return "";
  });
  EXPECT_TRUE(ended[1].killed);
}

}  // namespace
}  // namespace witan
