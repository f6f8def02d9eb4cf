// Ranks connect to a few others, and messages reach the rest through these.
#include "witan/comm/processes/links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <thread>

#include "support/links.h"

namespace witan {
namespace {

using testing::Ended;
using testing::expect_whole;
using testing::free_port;
using ::testing::HasSubstr;
using testing::hear;
using testing::in_processes;
using testing::kSoon;
using testing::launch_by_sockets;
using testing::leaves;
using ::testing::MatchesRegex;
using testing::meet_at_first;
using testing::on_links;
using testing::say;
using testing::stop_for;

TEST(ProcessLinks, ExistToRankZeroAndBetweenRanksThatCommunicate) {
  const auto ended = on_links(5, [](Links& links) -> std::string {
    if (links.rank() == 1) say(links, 2, "first");
    if (links.rank() == 2) {
      EXPECT_EQ(hear(links, 1), "first");
      say(links, 1, "second");
    }
    if (links.rank() == 1) {
      EXPECT_EQ(hear(links, 2), "second");
    }
    meet_at_first(links);
    return std::to_string(links.connections());
  });
  expect_whole(ended);
  const char* expected[] = {"4", "2", "2", "1", "1"};
  for (size_t rank = 0; rank < 5; ++rank) EXPECT_EQ(ended[rank].said, expected[rank]) << rank;
}

TEST(ProcessLinks, SimultaneousConnectionsOfAPairLeaveOne) {
  constexpr int kRanks = 6, kTimes = 8;
  for (int time = 0; time < kTimes; ++time) {
    const auto ended = on_links(kRanks, [](Links& links) -> std::string {
      meet_at_first(links);
      for (int step = 1; step < kRanks; ++step) {
        const int to = (links.rank() + step) % kRanks;
        say(links, to, cat(links.rank(), " to ", to));
      }
      for (int from = 0; from < kRanks; ++from) {
        if (from == links.rank()) continue;
        EXPECT_EQ(hear(links, from), cat(from, " to ", links.rank()));
      }
      return std::to_string(links.connections());
    });
    expect_whole(ended);
    for (const Ended& one : ended) EXPECT_EQ(one.said, std::to_string(kRanks - 1));
  }
}

TEST(ProcessLinks, ALossReachesRanksWithoutAConnection) {
  const auto ended = on_links(4, [](Links& links) -> std::string {
    meet_at_first(links);
    if (links.rank() == 3) ::raise(SIGKILL);
    hear(links, links.rank() == 0 ? 1 : 2);
    return "heard";
  });
  EXPECT_TRUE(ended[3].killed);
  for (const size_t rank : {0, 1, 2}) {
    EXPECT_THAT(ended[rank].said, MatchesRegex("rank 3 on .* is lost: its connection ended")) << rank;
    EXPECT_LT(ended[rank].seconds, kSoon);
  }
}

// Rank 0 is needed until all others are done.
TEST(ProcessLinks, AFinishedRankZeroStillForwardsALoss) {
  const auto ended = on_links(4, [](Links& links) -> std::string {
    meet_at_first(links);
    if (links.rank() == 0) return "done";
    if (links.rank() == 3) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2500));  // longer than others wait for leaving ranks
      ::raise(SIGKILL);
    }
    hear(links, 3 - links.rank());
    return "heard";
  });
  EXPECT_EQ(ended[0].said, "done");
  EXPECT_EQ(ended[0].code, 0);
  for (const size_t rank : {1, 2})
    EXPECT_THAT(ended[rank].said, MatchesRegex("rank 3 on .* is lost: its connection ended")) << rank;
}

TEST(ProcessLinks, ErrorsReachAllThroughRankZero) {
  const auto ended = on_links(4, [](Links& links) -> std::string {
    meet_at_first(links);
    if (links.rank() == 3) {
      links.fail({ProcessFailure::Kind::failed, 3, "no such shard"});
      return "";
    }
    hear(links, links.rank() == 1 ? 2 : 1);
    return "heard";
  });
  for (const size_t rank : {0, 1, 2})
    EXPECT_THAT(ended[rank].said, MatchesRegex("stopped, as rank 3 on .* failed: no such shard")) << rank;
}

// If A waits for B, which waits for a stopped C, then A must not take B for the lost rank.
TEST(ProcessLinks, AStoppedRankIsNamedToRanksWithoutAConnection) {
  constexpr double kDeadline = 3;
  const auto ended = on_links(
      5,
      [](Links& links) -> std::string {
        meet_at_first(links);
        if (links.rank() == 4) stop_for(3 * kDeadline);
        hear(links, links.rank() == 3 ? 4 : 3, kDeadline);
        return "heard";
      },
      kDeadline);
  for (const size_t rank : {0, 1, 2, 3}) {
    EXPECT_THAT(ended[rank].said, MatchesRegex("rank 4 on .* is lost: no heartbeat for .* s; .*")) << rank;
    EXPECT_LT(ended[rank].seconds, kDeadline + kSoon);
  }
}

TEST(ProcessLinks, ADepartureIsKnownToRanksWithoutAConnection) {
  const auto ended = on_links(4, [](Links& links) -> std::string {
    meet_at_first(links);
    if (links.rank() == 3) return "";
    if (links.rank() != 2) return hear(links, 3);
    EXPECT_TRUE(leaves(links, 3));
    say(links, 3, "are you there?");  // connects, without a receiver
    return hear(links, 3);
  });
  EXPECT_EQ(ended[3].code, 0);
  for (const size_t rank : {0, 1, 2}) {
    EXPECT_EQ(ended[rank].said, "rank 3 has left") << rank;
    EXPECT_LT(ended[rank].seconds, kSoon);
  }
}

// Ranks accept connections for as long as the job lasts, also from strangers.
TEST(ProcessLinks, LaterStrangersDisturbNobody) {
  const int port = free_port();
  const auto ended = in_processes(3, [&](int rank) -> std::string {
    Met met = meet_peers(launch_by_sockets(rank, 3, port), 20);
    const Endpoint two = met.peers[2].at;
    const Member guess{1, 3, "guess", "here", 0}, twice{1, 3, "test", "here", 0}, none{7, 3, "test", "here", 0};
    Links links(std::move(met), 20);
    std::string why;
    const auto introduced = [&](const Member& as) -> std::string {
      auto socket = connect_to(two, deadline_in(5), why);
      if (!socket) return why;
      try {
        return introduce(std::move(*socket), two, as, 2, deadline_in(5), why) ? "let in" : why;
      } catch (const CommError& error) {
        return error.what();
      }
    };
    if (rank == 1) {
      std::vector<Socket> silent;
      for (int i = 0; i < 300; ++i) {
        auto socket = connect_to(two, deadline_in(5), why);
        if (!socket) return why;
        if (i % 3 == 0) send_all(*socket, std::as_bytes(std::span("GET / HTTP/1.1\r\n\r\n")), deadline_in(1));
        silent.push_back(std::move(*socket));
      }
      EXPECT_THAT(introduced(guess), HasSubstr("its WITAN_JOB_SECRET differs"));
      EXPECT_THAT(introduced(none), HasSubstr("does not expect rank 7"));
      say(links, 2, "first");
      EXPECT_THAT(introduced(twice), HasSubstr("another process has already joined as rank 1"));
      say(links, 2, "second");
    }
    if (rank == 2) {
      EXPECT_EQ(hear(links, 1), "first");
      EXPECT_EQ(hear(links, 1), "second");
    }
    meet_at_first(links);
    return std::to_string(links.connections());
  });
  expect_whole(ended);
  EXPECT_EQ(ended[2].said, "2");
}

TEST(ProcessLinks, DeparturesRoundTrip) {
  const std::vector<Departure> all = {{0, 0}, {3, 1}, {2, ~uint64_t{0}}};
  const auto bytes = pack_departures(all);
  ASSERT_EQ(bytes.size(), 3 * kDepartureBytes);
  const auto read = parse_departures(bytes, 4);
  ASSERT_TRUE(read && read->size() == 3);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ((*read)[i].rank, all[i].rank);
    EXPECT_EQ((*read)[i].messages, all[i].messages);
  }
  EXPECT_FALSE(parse_departures(bytes, 3)) << "there is no rank 3 of three";
  EXPECT_FALSE(parse_departures(std::span(bytes).first(17), 4));
  EXPECT_TRUE(parse_departures({}, 4)->empty());
  auto odd = bytes;
  odd[4] = std::byte{1};
  EXPECT_FALSE(parse_departures(odd, 4));
}

}  // namespace
}  // namespace witan
