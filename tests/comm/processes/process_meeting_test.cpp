// Processes that meet while others connect: other jobs, noise, silent peers, other versions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <thread>

#include "support/links.h"
#include "witan/base/process.h"
#include "witan/comm/processes/pending_connections.h"
#include "witan/comm/processes/process_world.h"

namespace witan {
namespace {

using testing::connected_to_zero;
using testing::drain;
using testing::Ended;
using testing::expect_whole;
using testing::free_port;
using ::testing::HasSubstr;
using testing::in_processes;
using testing::kSoon;
using testing::launch_by_sockets;
using testing::launch_of;
using ::testing::MatchesRegex;
using testing::on_processes;
using testing::ProcessEvent;
using testing::ProcessRank;

TEST(ProcessMeeting, NamesAMissingRankToAll) {
  const int port = free_port();
  const auto ended = in_processes(3, [&](int rank) -> std::string {
    ProcessWorld world(launch_of(rank, 4, port), {1, 20});  // rank 3 never comes
    return "";
  });
  for (const Ended& one : ended) {
    EXPECT_EQ(one.code, static_cast<int>(ExitCode::rank_lost));
    EXPECT_THAT(one.said, MatchesRegex("rank 3 of 4 did not connect to rank 0 on .* \\(waited 1 s\\)"));
    EXPECT_LT(one.seconds, kSoon);
  }
}

TEST(ProcessMeeting, NamesAMissingRankZero) {
  const auto ended = in_processes(1, [&, port = free_port()](int) -> std::string {
    ProcessWorld world(launch_of(1, 2, port), {0.5, 20});
    return "";
  });
  EXPECT_EQ(ended[0].code, static_cast<int>(ExitCode::rank_lost));
  EXPECT_THAT(ended[0].said, HasSubstr("could not connect to rank 0 at 127.0.0.1:"));
  EXPECT_THAT(ended[0].said, HasSubstr("Connection refused"));
}

TEST(ProcessMeeting, RefusesAnotherSecretWithoutDisturbance) {
  const int port = free_port();
  const ProcessEvent refused;
  const auto ended = in_processes(3, [&](int index) -> std::string {
    if (index == 2) {
      try {
        const ProcessWorld world(launch_of(1, 2, port, "guess"), {10, 10});
      } catch (...) {
        refused.set();
        throw;
      }
    }
    // The expected rank connects after the stranger, who claims the same rank.
    if (index == 1) {
      EXPECT_TRUE(refused.wait());
    }
    ProcessWorld world(launch_of(index, 2, port), {10, 10});
    return world.first([] { return "met"; });
  });
  EXPECT_EQ(ended[0].said, "met");
  EXPECT_EQ(ended[1].said, "met");
  EXPECT_EQ(ended[2].code, static_cast<int>(ExitCode::rank_lost));
  EXPECT_THAT(ended[2].said, HasSubstr("is not rank 0 of this job: its WITAN_JOB_SECRET differs"));
  EXPECT_LT(ended[2].seconds, kSoon);
}

TEST(ProcessMeeting, RefusesAnotherSizeAndASecondProcessOfARank) {
  const int port = free_port();
  const auto ended = in_processes(2, [&](int rank) -> std::string {
    ProcessWorld world(launch_of(rank, rank == 0 ? 2 : 3, port), {1, 10});
    return "";
  });
  EXPECT_THAT(ended[1].said, HasSubstr("its world size is 2, this process's is 3"));
  EXPECT_THAT(ended[0].said, HasSubstr("rank 1 of 2 did not connect"));
  EXPECT_THAT(ended[0].said, HasSubstr("was refused: its world size is 3, not 2"));
  const auto twice = in_processes(3, [&, again = free_port()](int index) -> std::string {
    ProcessWorld world(launch_of(index == 2 ? 1 : index, 3, again), {1, 10});
    return "";
  });
  EXPECT_THAT(twice[1].said + twice[2].said, HasSubstr("another process has already joined as rank 1"));
}

// A stranger sends these bytes to rank 0, whose job then meets as usual.
void expect_unimpressed(const std::string& bytes, bool hangs_up) {
  const int port = free_port();
  const ProcessEvent came, met;
  const auto ended = in_processes(3, [&](int index) -> std::string {
    if (index < 2) {
      if (index == 1) {
        EXPECT_TRUE(came.wait());
      }
      ProcessWorld world(launch_of(index, 2, port), {10, 10});
      if (index == 1) met.set();
      return world.first([] { return "met"; });
    }
    Socket socket = connected_to_zero(port);
    send_all(socket, std::as_bytes(std::span(bytes)), deadline_in(1));
    if (hangs_up) socket = Socket();
    came.set();
    if (!hangs_up) met.wait();
    return "";
  });
  EXPECT_EQ(ended[0].said, "met");
  EXPECT_EQ(ended[1].said, "met");
  EXPECT_LT(ended[0].seconds, kSoon);
}

TEST(ProcessMeeting, GarbageAndSilenceDisturbNobody) {
  Greeting greeting;
  std::string polite(reinterpret_cast<const char*>(&greeting), sizeof greeting);
  std::string garbage;
  const Philox rng(1, 1);
  for (uint64_t i = 0; i < 4000; ++i) garbage += static_cast<char>(rng.bits(i));
  for (const bool hangs_up : {true, false}) {
    expect_unimpressed("", hangs_up);
    expect_unimpressed("GET / HTTP/1.1\r\n\r\n", hangs_up);
    expect_unimpressed(garbage, hangs_up);
    expect_unimpressed(polite, hangs_up);
    expect_unimpressed(polite + garbage, hangs_up);
  }
}

// Opens as many connections as allowed and sends a byte of a greeting on each now and then, but never the last one,
// until the job has ended. Returns how many connections it had lost before; sets `back` after kMostStrangers of them.
int crowd(int port, const ProcessEvent& back) {
  struct Connection {
    Socket socket;
    size_t said = 0;
  };
  constexpr size_t kMany = 2 * kMostStrangers;
  const Greeting greeting;
  std::vector<Connection> connections;
  int lost = 0;
  std::string why;
  connected_to_zero(port);
  for (bool told = false;;) {
    while (connections.size() < kMany) {
      auto socket = connect_to({"127.0.0.1", port}, deadline_in(1), why);
      if (!socket) return lost;
      connections.push_back({std::move(*socket)});
    }
    lost += static_cast<int>(std::erase_if(connections, [&](Connection& one) {
      if (hung_up(one.socket)) return true;
      const auto* byte = reinterpret_cast<const std::byte*>(&greeting) + one.said++;
      return one.said < sizeof greeting && ::send(one.socket.fd(), byte, 1, MSG_NOSIGNAL) != 1;
    }));
    if (!told && lost >= static_cast<int>(kMostStrangers)) {
      back.set();
      told = true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

TEST(ProcessMeeting, ACrowdOfOpenConnectionsKeepsNobodyOut) {
  const int port = free_port();
  const ProcessEvent back;
  const auto ended = in_processes(5, [&](int index) -> std::string {
    if (index == 4) return std::to_string(crowd(port, back));
    if (index > 0) back.wait();
    ProcessWorld world(launch_of(index, 4, port), {4, 20});  // shorter than the crowd is served
    return world.first([] { return "met"; });
  });
  for (size_t rank = 0; rank < 4; ++rank) EXPECT_EQ(ended[rank].said, "met") << rank;
  EXPECT_GE(std::stoi(ended[4].said), kMostStrangers) << "they kept reconnecting and were dropped";
}

TEST(ProcessMeeting, NamesAKilledRankDuringMeetingAtOnce) {
  const int port = free_port();
  const auto ended = in_processes(3, [&](int rank) -> std::string {
    if (rank != 1) {
      ProcessWorld world(launch_of(rank, 4, port), {20, 20});  // rank 3 never comes
      return "met";
    }
    std::string why;
    const Member self{1, 4, "test", "here", 1};
    const auto first = introduce(connected_to_zero(port), {"127.0.0.1", port}, self, 0, deadline_in(5), why);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    ::raise(SIGKILL);
    return "";
  });
  for (const size_t rank : {0, 2}) {
    EXPECT_EQ(ended[rank].code, static_cast<int>(ExitCode::rank_lost));
    EXPECT_EQ(ended[rank].said, "rank 1 on here is lost: its connection ended");
    EXPECT_LT(ended[rank].seconds, kSoon);
  }
}

// A rank that connects to rank 0 and then stays silent.
TEST(ProcessMeeting, NamesARankThatStopsAfterConnecting) {
  constexpr double kPatience = 1.5;
  const int port = free_port();
  const auto ended = in_processes(4, [&](int rank) -> std::string {
    if (rank != 2) {
      ProcessWorld world(launch_of(rank, 4, port), {kPatience, kPatience});
      return world.first([] { return "met"; });
    }
    const Socket listener = listen_at({"127.0.0.1", 0});
    std::string why;
    const Member self{2, 4, "test", "here", local_end(listener).port};
    const auto first = introduce(connected_to_zero(port), {"127.0.0.1", port}, self, 0, deadline_in(5), why);
    drain(first->socket);
    return "";
  });
  for (const size_t rank : {0, 1, 3}) {
    EXPECT_EQ(ended[rank].code, static_cast<int>(ExitCode::rank_lost));
    EXPECT_THAT(ended[rank].said, MatchesRegex(".*rank 2 on here is lost: no heartbeat for .*"));
    EXPECT_LT(ended[rank].seconds, kPatience + kSoon);
  }
}

// Without a secret, any local process can prove knowledge of the empty secret, but not that it is another user.
TEST(ProcessMeeting, RefusesAnotherUserWithoutASecret) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  constexpr uid_t kNobody = 65534;
  const int port = free_port();
  const ProcessEvent refused;
  const auto ended = in_processes(3, [&](int index) -> std::string {
    if (index == 2) {
      std::string why;
      EXPECT_EQ(::seteuid(kNobody), 0);
      Socket socket = connected_to_zero(port);
      EXPECT_EQ(::seteuid(0), 0);
      const Member self{1, 2, "", "here", 1};
      const bool let_in = introduce(std::move(socket), {"127.0.0.1", port}, self, 0, deadline_in(5), why).has_value();
      refused.set();
      return let_in ? "let in" : why;
    }
    if (index == 1) {
      EXPECT_TRUE(refused.wait());
    }
    ProcessWorld world(launch_of(index, 2, port, ""), {10, 10});
    return world.first([] { return "met"; });
  });
  EXPECT_EQ(ended[0].said, "met");
  EXPECT_EQ(ended[1].said, "met");
  EXPECT_EQ(ended[2].said, "rank 0 ended the connection");
  // The other user is not taken for rank 0 either, even if he listened on its port first.
  const auto waited = in_processes(2, [&, free = free_port()](int index) -> std::string {
    if (index == 1) {
      ProcessWorld world(launch_of(1, 2, free, ""), {5, 5});
      return "met";
    }
    EXPECT_EQ(::seteuid(kNobody), 0);
    const Socket listener = listen_at({"127.0.0.1", free});
    const Member zero{0, 2, "", "here", 0};
    Roster roster{{1}, {}};
    AcceptingEnd end(zero, roster, fresh_greeting());
    wait_readable(listener, 5);
    const auto connection = accept_from(listener);
    EXPECT_EQ(::seteuid(0), 0);
    while (!end.room().empty() && recv_all(*connection, end.room(), deadline_in(5)) == Transfer::done)
      send_all(*connection, end.advance(end.room().size()).send, deadline_in(5));
    return roster.met.empty() ? "alone" : "believed";
  });
  EXPECT_EQ(waited[0].said, "alone");
  EXPECT_THAT(waited[1].said, HasSubstr("is not rank 0 of this job: it belongs to another user of this machine"));
}

TEST(ProcessMeeting, NamesAnotherVersion) {
  const int port = free_port();
  const auto ended = in_processes(2, [&](int index) -> std::string {
    if (index == 1) {
      ProcessWorld world(launch_of(1, 2, port), {5, 5});
      return "";
    }
    const Socket listener = listen_at({"127.0.0.1", port});
    wait_readable(listener, 5);
    const auto connection = accept_from(listener);
    Greeting newer;
    newer.version = kProtocol + 1;
    send_all(*connection, std::as_bytes(std::span(&newer, 1)), deadline_in(1));
    drain(*connection);
    return "";
  });
  EXPECT_EQ(ended[1].code, static_cast<int>(ExitCode::rank_lost));
  EXPECT_THAT(ended[1].said, HasSubstr(cat("it speaks version ", kProtocol + 1,
                                           " of Witan's protocol, this program version ", kProtocol)));
}

TEST(ProcessMeeting, RefusesAConnectionFromAnotherVersion) {
  const int port = free_port();
  const auto ended = in_processes(2, [&](int index) -> std::string {
    if (index == 0) {
      ProcessWorld world(launch_of(0, 2, port), {1, 5});
      return "";
    }
    const Socket socket = connected_to_zero(port);
    Greeting newer, answer;
    newer.version = kProtocol + 1;
    send_all(socket, std::as_bytes(std::span(&newer, 1)), deadline_in(1));
    EXPECT_EQ(recv_all(socket, std::as_writable_bytes(std::span(&answer, 1)), deadline_in(1)), Transfer::done);
    EXPECT_EQ(answer.version, kProtocol) << "the connecting side can report the error";
    return "";
  });
  EXPECT_EQ(ended[1].code, 0);
  EXPECT_THAT(ended[0].said, HasSubstr(cat("it speaks version ", kProtocol + 1, " of Witan's protocol")));
}

// Rank 0's error about rank 1, a member of the job that then sends these bytes.
std::string said_of(const std::string& bytes) {
  const int port = free_port();
  const auto ended = in_processes(2, [&](int rank) -> std::string {
    if (rank == 1) {
      const auto peers = meet_peers(launch_of(1, 2, port), 10).peers;
      send_all(peers[0].socket, std::as_bytes(std::span(bytes)), deadline_in(1));
      std::array<std::byte, 4096> rest;
      while (recv_all(peers[0].socket, rest, deadline_in(0.5)) == Transfer::done) {
      }
      return "";
    }
    ProcessWorld world(launch_by_sockets(0, 2, port), {10, 10});
    world.run([&](int) {
      ProcessRank own(world);
      own.everyone()->all_reduce(own.stream, own.stream.zeros({4}, DType::f32));
    });
    return "";
  });
  EXPECT_EQ(ended[0].code, static_cast<int>(ExitCode::rank_lost));
  EXPECT_LT(ended[0].seconds, kSoon);
  return ended[0].said;
}

std::string frame(uint32_t kind, uint64_t channel, uint64_t bytes, const std::string& payload = "") {
  std::string text;
  const auto add = [&](const auto& value) { text.append(reinterpret_cast<const char*>(&value), sizeof value); };
  add(kind);
  add(uint32_t{0});
  add(channel);
  add(bytes);
  return text + payload;
}

TEST(ProcessMeeting, ARankWithInvalidMessagesIsLost) {
  const std::string lost = "is lost: it sent a malformed message";
  EXPECT_THAT(said_of(std::string(24, '\xff')), HasSubstr(lost));
  EXPECT_THAT(said_of(frame(0, 1, uint64_t{1} << 60)), HasSubstr(lost));  // a control message beyond its bounds
  EXPECT_THAT(said_of(frame(kData, 1, 8, "unwanted")), HasSubstr(lost));  // data that was not requested
  EXPECT_THAT(said_of(frame(kData, 1, ~uint64_t{0})), HasSubstr(lost));   // the same with the largest size
  EXPECT_THAT(said_of(frame(kFailure, 0, 1 << 20)), HasSubstr(lost));     // too many words
  EXPECT_THAT(said_of(frame(kShutdown, 0, 1)), HasSubstr(lost));          // too many for a shutdown message
  EXPECT_THAT(said_of(frame(kHeartbeat, 0, 8, "too long")), HasSubstr(lost));
  EXPECT_THAT(said_of(frame(kDepartures, 0, 8, "half one")), HasSubstr(lost));
  EXPECT_THAT(said_of(frame(kDepartures, 0, 16, std::string(16, '\x02'))), HasSubstr(lost));  // unknown ranks
  EXPECT_THAT(said_of(frame(kDepartures, 0, kMostDeparturesBytes + 16)), HasSubstr(lost));
  EXPECT_THAT(said_of(frame(kDepartures + 1, 0, 0)), HasSubstr(lost));
  std::string flood, channels;
  for (int i = 0; i < 10; ++i) flood += frame(0, 9, 0);
  for (uint64_t i = 0; i < 5000; ++i) channels += frame(0, i, 0);
  EXPECT_THAT(said_of(flood), HasSubstr(lost));
  EXPECT_THAT(said_of(channels), HasSubstr(lost));
  EXPECT_THAT(said_of(frame(0, 1, 100, "cut off")).substr(0, 6), "rank 0");
}

TEST(ProcessMeeting, ConnectionsHaveTcpTimeouts) {
  const int port = free_port();
  expect_whole(in_processes(2, [&](int rank) -> std::string {
    const auto peers = meet_peers(launch_of(rank, 2, port), 10).peers;
    const auto option = [&](int level, int name) {
      int value = 0;
      socklen_t length = sizeof value;
      ::getsockopt(peers[static_cast<size_t>(1 - rank)].socket.fd(), level, name, &value, &length);
      return value;
    };
    EXPECT_EQ(option(SOL_SOCKET, SO_KEEPALIVE), 1);
    const int silence =
        option(IPPROTO_TCP, TCP_KEEPIDLE) + option(IPPROTO_TCP, TCP_KEEPINTVL) * option(IPPROTO_TCP, TCP_KEEPCNT);
    EXPECT_LT(silence, kSoon);
    EXPECT_LT(option(IPPROTO_TCP, TCP_USER_TIMEOUT), kSoon * 1000);
    EXPECT_EQ(peers[0].host, peers[1].host);
    return "";
  }));
}

// A failure names the failed rank; one with an unknown rank is ignored, and later messages are read.
TEST(ProcessMeeting, IgnoresFailuresOfUnknownRanks) {
  constexpr uint32_t kFailed = 2, kUnknown = 4;
  const auto words = [](uint32_t kind, uint32_t rank) {
    std::string text(2 * sizeof(uint32_t), '\0');
    std::memcpy(text.data(), &kind, sizeof kind);
    std::memcpy(text.data() + sizeof kind, &rank, sizeof rank);
    return text + "all is lost";
  };
  for (const auto& payload : {words(kFailed, 1 << 20), words(kFailed, ~uint32_t{0}), words(kUnknown, 1)})
    EXPECT_THAT(said_of(frame(kFailure, 0, payload.size(), payload)), HasSubstr("is lost: its connection ended"));
  EXPECT_THAT(said_of(frame(kFailure, 0, 4, "four")), HasSubstr("is lost: its connection ended"));
}

constexpr int64_t kMuch = int64_t{16} << 20;  // more than connections hold

// As rank 1, requests the data that rank 0 offers; returns whether it offers any.
bool ask_for_data(const Socket& zero) {
  constexpr uint32_t kOffer = 2, kAnswer = 3;
  std::array<uint64_t, 3> header{};
  while (static_cast<uint32_t>(header[0]) != kOffer)  // heartbeats come first
    if (recv_all(zero, std::as_writable_bytes(std::span(header)), deadline_in(5)) != Transfer::done) return false;
  const std::string answer = frame(kAnswer, header[1], 0);
  return send_all(zero, std::as_bytes(std::span(answer)), deadline_in(1)) == Transfer::done;
}

// Rank 1 requests data that it does not read; meanwhile rank 2 is lost.
TEST(ProcessMeeting, ARankWithABlockedPeerLearnsOfALoss) {
  const int port = free_port();
  const ProcessEvent asked, over;
  const auto ended = in_processes(3, [&](int rank) -> std::string {
    if (rank > 0) {
      const auto peers = meet_peers(launch_of(rank, 3, port), 10).peers;
      if (rank == 1) {
        EXPECT_TRUE(ask_for_data(peers[0].socket));
        std::this_thread::sleep_for(std::chrono::milliseconds(300));  // rank 0 sends until buffers are full
        asked.set();
        over.wait();
      } else {
        asked.wait();
      }
      return "";
    }
    ProcessWorld world(launch_by_sockets(0, 3, port), {10, 20});
    double seconds = 0;
    std::string said;
    try {
      world.run([&](int) {
        ProcessRank own(world);
        const auto pair = world.group(0, {0, 1}, "pair");
        const Stopwatch sending;
        try {
          pair->send(own.stream, own.stream.empty({kMuch}, DType::f32), 1);
        } catch (...) {
          seconds = sending.seconds();
          throw;
        }
      });
    } catch (const CommError& error) {
      said = error.what();
    }
    over.set();
    EXPECT_LT(seconds, 3);
    return said;
  });
  EXPECT_EQ(ended[0].code, 0);
  EXPECT_THAT(ended[0].said, MatchesRegex("rank 0: rank 2 on .* is lost: its connection ended; rank 0 was in send .*"));
}

// A process stopped by a debugger leaves received data unread for longer than a host may be silent.
TEST(ProcessMeeting, ARankHeldByADebuggerMayLeaveDataUnread) {
  const int port = free_port();
  const auto ended = in_processes(2, [&](int rank) -> std::string {
    if (rank == 0) {
      ProcessWorld world(launch_by_sockets(0, 2, port), {10, 20, 1, {1}});
      world.run([&](int) {
        ProcessRank own(world);
        world.group(0, {0, 1}, "pair")->send(own.stream, own.stream.empty({kMuch}, DType::f32), 1);
      });
      return "";
    }
    const auto peers = meet_peers(launch_of(1, 2, port), 10).peers;
    EXPECT_TRUE(ask_for_data(peers[0].socket));
    std::this_thread::sleep_for(std::chrono::milliseconds(5500));
    std::vector<std::byte> piece(size_t{1} << 20);
    size_t got = 0;
    while (got < kMuch * sizeof(float) && recv_all(peers[0].socket, piece, deadline_in(5)) == Transfer::done)
      got += piece.size();
    EXPECT_EQ(got, kMuch * sizeof(float));
    return "";
  });
  expect_whole(ended);
}

}  // namespace
}  // namespace witan
