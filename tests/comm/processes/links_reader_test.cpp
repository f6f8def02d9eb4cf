// Reports of rank 0 about ranks to others that are not connected to them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <thread>

#include "support/links.h"

namespace witan {
namespace {

using testing::drain;
using testing::free_port;
using ::testing::HasSubstr;
using testing::hear;
using testing::in_processes;
using testing::kSoon;
using testing::launch_by_sockets;
using ::testing::MatchesRegex;
using testing::meet_at_first;
using testing::on_links;
using testing::send_frame;

constexpr double kSilence = 3;  // a heartbeat each 0.3 s

void pause_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

// Rank 1's error after waiting in vain for rank 2, from some time on for 0.1 s. Rank 0, played by the test, reports at
// another time that rank 2 has been silent for 5 s.
std::string said_when(double rank_zero_speaks, double rank_one_waits) {
  return in_processes(3,
                      [&, port = free_port()](int rank) -> std::string {
                        Met met = meet_peers(launch_by_sockets(rank, 3, port), 20);
                        if (rank == 1) {
                          Links links(std::move(met), kSilence);
                          pause_for(rank_one_waits);
                          return hear(links, 2, 0.1);
                        }
                        if (rank == 0) {
                          pause_for(rank_zero_speaks);
                          send_frame(met.peers[1].socket, {kHeartbeat, 0, uint64_t{3} << 32 | 50 << 1});
                          send_frame(met.peers[1].socket, {kShutdown});
                        }
                        drain(met.peers[rank == 0 ? 1 : 0].socket);
                        return "";
                      })[1]
      .said;
}

TEST(ProcessLinks, ReportsOfSilentRanksExpire) {
  EXPECT_THAT(said_when(0.4, 0), HasSubstr("is lost: no heartbeat for 5 s;")) << "the late rank is being waited for";
  EXPECT_EQ(said_when(0, 0.5), "rank 2 is late") << "it may have been heard since";
}

// Rank 2, played by the test, sends no heartbeats.
TEST(ProcessLinks, AFinishedRankZeroStillReportsSilentRanks) {
  const auto ended = in_processes(3, [&, port = free_port()](int rank) -> std::string {
    Met met = meet_peers(launch_by_sockets(rank, 3, port), 20);
    if (rank == 2) {
      pause_for(2);
      return "";
    }
    Links links(std::move(met), kSilence);
    return rank == 0 ? "" : hear(links, 2, 1);
  });
  EXPECT_THAT(ended[1].said, MatchesRegex("rank 2 on .* is lost: no heartbeat for .* s;.*"));
}

// Rank 0, which does not wait itself, forwards it before it leaves or while it is leaving.
void expect_error_to_reach_all(bool zero_leaves) {
  const testing::ProcessEvent heard;
  const auto ended = on_links(4, [&](Links& links) -> std::string {
    meet_at_first(links);
    if (links.rank() == 3) links.fail({ProcessFailure::Kind::failed, 3, "no such shard"});
    if (links.rank() == 0) return zero_leaves || heard.wait(kSoon) ? "" : "nobody has heard of it";
    if (links.rank() == 3) return "";
    try {
      return hear(links, 3 - links.rank());
    } catch (...) {
      if (links.rank() == 1) heard.set();
      throw;
    }
  });
  EXPECT_EQ(ended[0].said, "");
  for (const size_t rank : {1, 2}) {
    EXPECT_THAT(ended[rank].said, MatchesRegex("stopped, as rank 3 on .* failed: no such shard")) << rank;
    EXPECT_LT(ended[rank].seconds, kSoon);
  }
}

TEST(ProcessLinks, ErrorsReachAllThroughABusyRankZero) {
  expect_error_to_reach_all(false);
}

TEST(ProcessLinks, ErrorsReachAllThroughAFinishedRankZero) {
  expect_error_to_reach_all(true);
}

// Ranks 1 and 2 are played by the test: rank 1 reports an error and rank 2 is lost before the stopped rank 0 polls.
TEST(ProcessLinks, AFinishedRankZeroForwardsTheFirstFailure) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const Socket heard(ends[0]), says(ends[1]);
  const auto ended = in_processes(4, [&, port = free_port()](int rank) -> std::string {
    Met met = meet_peers(launch_by_sockets(rank, 4, port), 20);
    if (rank == 0) {
      const pid_t own = ::getpid();
      Links links(std::move(met), 20);
      EXPECT_EQ(::write(says.fd(), &own, sizeof own), ssize_t{sizeof own});
      return "";  // returns after all others have left
    }
    if (rank == 3) {
      Links links(std::move(met), 20);
      return hear(links, 1);
    }
    if (rank == 2) {
      pause_for(0.5);
      return "";
    }
    pid_t zero = 0;
    EXPECT_EQ(::read(heard.fd(), &zero, sizeof zero), ssize_t{sizeof zero});
    pause_for(0.2);
    ::kill(zero, SIGSTOP);
    const auto words = pack_failure({ProcessFailure::Kind::failed, 1, "no such shard"});
    send_frame(met.peers[0].socket, {kFailure}, words);
    pause_for(0.6);
    ::kill(zero, SIGCONT);
    send_frame(met.peers[0].socket, {kShutdown});
    return "";
  });
  EXPECT_THAT(ended[3].said, HasSubstr("failed: no such shard"));
}

}  // namespace
}  // namespace witan
