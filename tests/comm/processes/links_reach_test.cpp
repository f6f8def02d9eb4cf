// Ranks that connect to each other late, and ranks that cannot.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <optional>
#include <thread>

#include "support/comes_true.h"
#include "support/links.h"
#include "support/process_state.h"

namespace witan {
namespace {

using testing::drain;
using testing::Ended;
using testing::expect_whole;
using testing::free_port;
using ::testing::HasSubstr;
using testing::hear;
using testing::in_processes;
using testing::introduced_to;
using testing::kCall;
using testing::kChannel;
using testing::kSoon;
using testing::launch_by_sockets;
using testing::leaves;
using ::testing::MatchesRegex;
using testing::meet_at_first;
using testing::NoFreeDescriptors;
using testing::on_links;
using testing::ProcessEvent;
using testing::say;
using testing::send_frame;

// A rank whose address rank 1 takes for another rank's.
std::vector<Ended> where_two_is_elsewhere(int ranks, const std::function<Endpoint(const Met& met)>& elsewhere,
                                          const std::function<std::string(Links&)>& body) {
  return in_processes(ranks, [&, port = free_port()](int rank) {
    Met met = meet_peers(launch_by_sockets(rank, ranks, port), 20);
    if (rank == 1) met.peers[2].at = elsewhere(met);
    Links links(std::move(met), 20);
    meet_at_first(links);
    return body(links);
  });
}

// As behind a firewall that drops packets, each attempt lasts until the deadline.
TEST(ProcessLinks, NamesARankThatDoesNotAnswerAtTheDeadline) {
  constexpr double kDeadline = 2.5;
  const Socket silent = listen_at({"127.0.0.1", 0});
  const auto ended = where_two_is_elsewhere(
      3, [&](const Met&) { return local_end(silent); },
      [](Links& links) -> std::string {
        if (links.rank() != 1) return hear(links, 1);
        links.send_control(2, kChannel, kCall, {}, kDeadline);
        return "";
      });
  for (const Ended& one : ended) {
    EXPECT_THAT(one.said, MatchesRegex("rank 2 on .* is lost: rank 1 on .* could not connect to it at 127.0.0.1:.*: "
                                       "rank 2 did not answer"));
    EXPECT_LT(one.seconds, kDeadline + kSoon);
  }
}

TEST(ProcessLinks, NamesAWrongRankAtAnAddressAtOnce) {
  const auto ended = where_two_is_elsewhere(
      3,
      [](const Met& met) {
        return Endpoint{"127.0.0.1", met.self.port};
      },
      [](Links& links) -> std::string {
        if (links.rank() != 1) return hear(links, 1);
        say(links, 2, "hello");
        return "";
      });
  for (const Ended& one : ended) {
    EXPECT_THAT(one.said, HasSubstr("is not rank 2 of this job: it is rank 1 and does not expect rank 1"));
    EXPECT_LT(one.seconds, kSoon);
  }
}

TEST(ProcessLinks, AConnectingRankLearnsOfFailures) {
  const Socket silent = listen_at({"127.0.0.1", 0});
  const auto ended = where_two_is_elsewhere(
      4, [&](const Met&) { return local_end(silent); },
      [&](Links& links) -> std::string {
        if (links.rank() == 1) say(links, 2, "hello");
        if (links.rank() != 3) return hear(links, 3);
        EXPECT_TRUE(wait_readable(silent, kSoon));  // rank 1 connects
        links.fail({ProcessFailure::Kind::failed, 3, "no such shard"});
        return "";
      });
  for (const size_t rank : {0, 1, 2}) {
    EXPECT_THAT(ended[rank].said, MatchesRegex("stopped, as rank 3 on .* failed: no such shard")) << rank;
    EXPECT_LT(ended[rank].seconds, kSoon);
  }
}

// Rank 0, played by the test, reports that rank 2 has left, which then connects to rank 1: its own messages count.
TEST(ProcessLinks, ALateConnectionOverridesAReportedDeparture) {
  const ProcessEvent left;
  const auto ended = in_processes(3, [&, port = free_port()](int rank) -> std::string {
    Met met = meet_peers(launch_by_sockets(rank, 3, port), 20);
    if (rank == 0) {
      send_frame(met.peers[1].socket, {kDepartures}, pack_departures(std::vector<Departure>{{2, 0}}));
      for (const int to : {1, 2}) send_frame(met.peers[static_cast<size_t>(to)].socket, {kShutdown});
      for (const int from : {1, 2}) drain(met.peers[static_cast<size_t>(from)].socket);
      return "";
    }
    Links links(std::move(met), 20);
    if (rank == 1) {
      EXPECT_TRUE(leaves(links, 2));
      left.set();
      EXPECT_TRUE(test::comes_true([&] { return links.connections() == 2; }));
      say(links, 2, "go on");
      EXPECT_EQ(hear(links, 2), "first");
      EXPECT_EQ(hear(links, 2), "second");
      EXPECT_TRUE(leaves(links, 2));
      return "";
    }
    EXPECT_TRUE(left.wait());
    say(links, 1, "first");
    EXPECT_EQ(hear(links, 1), "go on");
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // rank 1 waits for it
    say(links, 1, "second");
    return "";
  });
  expect_whole(ended);
}

// Rank 0, played by the test, reports that rank 2 has left. Rank 2's own shutdown message would follow all its data.
TEST(ProcessLinks, AConnectedRankReportsItsOwnDeparture) {
  const ProcessEvent connected;
  expect_whole(in_processes(3, [&, port = free_port()](int rank) -> std::string {
    Met met = meet_peers(launch_by_sockets(rank, 3, port), 20);
    if (rank == 0) {
      EXPECT_TRUE(connected.wait());
      send_frame(met.peers[1].socket, {kDepartures}, pack_departures(std::vector<Departure>{{2, 0}}));
      for (const int to : {1, 2}) send_frame(met.peers[static_cast<size_t>(to)].socket, {kShutdown});
      for (const int from : {1, 2}) drain(met.peers[static_cast<size_t>(from)].socket);
      return "";
    }
    Links links(std::move(met), 20);
    if (rank == 2) {
      say(links, 1, "connected");
      return hear(links, 1) == "leave" ? "" : "another word";
    }
    EXPECT_EQ(hear(links, 2), "connected");
    connected.set();
    EXPECT_TRUE(leaves(links, 0));
    EXPECT_FALSE(leaves(links, 2, 0.2));
    say(links, 2, "leave");
    EXPECT_TRUE(leaves(links, 2));
    return "";
  }));
}

TEST(ProcessLinks, ReadsAnswersOnNewConnectionsAtOnce) {
  constexpr double kLong = 600;  // a heartbeat each 5 s
  expect_whole(on_links(
      3,
      [](Links& links) -> std::string {
        meet_at_first(links);
        const auto start = deadline_in(0);
        if (links.rank() == 1) say(links, 2, "hello");
        if (links.rank() > 0) hear(links, 3 - links.rank());
        if (links.rank() == 2) say(links, 1, "hello");
        EXPECT_LT(seconds_since(start), 2);
        return "";
      },
      kLong));
}

// CPU seconds of all threads of this process.
double processor_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

// Its reader thread sleeps meanwhile, and afterwards does not wait for the next heartbeat.
TEST(ProcessLinks, ARankWithoutDescriptorsAcceptsConnectionsOnceItHasSome) {
  constexpr double kLong = 600;  // a heartbeat each 5 s
  expect_whole(on_links(
      3,
      [](Links& links) -> std::string {
        std::optional<NoFreeDescriptors> none;
        if (links.rank() == 1) none.emplace();
        meet_at_first(links);
        if (links.rank() == 2) say(links, 1, "hello");
        if (links.rank() != 1) return "";
        const double before = processor_seconds();
        std::this_thread::sleep_for(std::chrono::seconds(1));
        EXPECT_LT(processor_seconds() - before, 0.1);
        EXPECT_EQ(links.connections(), 1);
        none.reset();
        const auto start = deadline_in(0);
        EXPECT_EQ(hear(links, 2), "hello");
        EXPECT_LT(seconds_since(start), 2);
        return "";
      },
      kLong));
}

// Silence counts per connection, not since the start of the job.
TEST(ProcessLinks, LateConnectionsAreNotSilent) {
  constexpr double kSilence = 2;
  expect_whole(on_links(
      6,
      [](Links& links) -> std::string {
        meet_at_first(links);
        std::this_thread::sleep_for(std::chrono::milliseconds(2300));
        for (int to = 1; to < links.rank(); ++to) say(links, to, "hello");
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
        for (int from = links.rank() + 1; links.rank() > 0 && from < links.size(); ++from) hear(links, from);
        meet_at_first(links);
        return "";
      },
      kSilence));
}

// Rank 2, played by the test, learns from rank 0 that rank 1 is leaving, and nevertheless connects to it.
TEST(ProcessLinks, ALeavingRankAcceptsNoConnections) {
  expect_whole(in_processes(3, [&, port = free_port()](int rank) -> std::string {
    Met met = meet_peers(launch_by_sockets(rank, 3, port), 20);
    if (rank == 2) {
      FrameHeader header;
      while (header.kind != kDepartures)  // heartbeats come first
        if (recv_all(met.peers[0].socket, std::as_writable_bytes(std::span(&header, 1)), deadline_in(5)) !=
            Transfer::done)
          return "rank 0 did not say that rank 1 has left";
      EXPECT_FALSE(introduced_to(met, 1));
      send_frame(met.peers[0].socket, {kShutdown});
      drain(met.peers[0].socket);
      return "";
    }
    Links links(std::move(met), 20);
    if (rank == 0) {
      EXPECT_TRUE(leaves(links, 1));
      EXPECT_TRUE(leaves(links, 2));
    }
    return "";
  }));
}

// TCP user timeouts (ms) of this process's connections; -1 if there is none.
std::vector<int> patience_of_connections() {
  std::vector<int> all;
  for (int fd = 0; fd < 256; ++fd) {
    sockaddr_storage other{};
    socklen_t length = sizeof other, value_length = sizeof(int);
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&other), &length) != 0 || other.ss_family == AF_UNIX) continue;
    int alive = 0, patience = 0;
    ::getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &alive, &value_length);
    ::getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &patience, &value_length);
    all.push_back(alive == 1 ? patience : -1);
  }
  std::ranges::sort(all);
  return all;
}

// Applies to both ends of a connection; a rank held by a debugger may leave data unread.
TEST(ProcessLinks, LateConnectionsHaveTcpTimeouts) {
  const auto before = patience_of_connections();
  ASSERT_TRUE(before.empty());
  expect_whole(in_processes(4, [&, port = free_port()](int rank) -> std::string {
    const std::vector<int> held = {2};
    Links links(meet_peers(launch_by_sockets(rank, 4, port), 20), 20,
                std::make_shared<DebugHold>(held, rank == 2 ? held : std::vector<int>{}));
    for (int to = 1; to < rank; ++to) say(links, to, "hello");
    for (int from = rank + 1; rank > 0 && from < 4; ++from) hear(links, from);
    const auto patience = patience_of_connections();
    EXPECT_EQ(patience.size(), 3U);
    EXPECT_GE(patience.front(), 0);
    EXPECT_EQ(std::ranges::count(patience, 0), rank == 2 ? 0 : 1);
    meet_at_first(links);
    return "";
  }));
}

}  // namespace
}  // namespace witan
