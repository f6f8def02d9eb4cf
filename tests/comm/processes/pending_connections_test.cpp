// Connections are chosen by a rule when there are more of them than slots or descriptors.
#include "witan/comm/processes/pending_connections.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "support/process_state.h"
#include "witan/base/error.h"

namespace witan {
namespace {

// A connection to a local port from one of the loopback addresses.
Socket stranger_from(const char* address, int port) {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in here{}, there{};
  here.sin_family = there.sin_family = AF_INET;
  here.sin_addr.s_addr = ::inet_addr(address);
  there.sin_addr.s_addr = ::inet_addr("127.0.0.1");
  there.sin_port = htons(static_cast<uint16_t>(port));
  EXPECT_EQ(::bind(socket.fd(), reinterpret_cast<const sockaddr*>(&here), sizeof here), 0);
  EXPECT_EQ(::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&there), sizeof there), 0);
  return socket;
}

void attend(PendingConnections& pending) {
  std::vector<pollfd> fds;
  pending.add_to(fds);
  ::poll(fds.data(), fds.size(), 0);
  EXPECT_TRUE(pending.attend(fds).empty());
}

TEST(PendingConnections, TheOldestOfACrowdMakeRoomForTheNewest) {
  constexpr size_t kMost = kMostStrangers + 1, kMore = 10;  // of a job that expects one rank
  const Socket listener = listen_at({"127.0.0.1", 0});
  const int port = local_end(listener).port;
  const Member zero{0, 2, "secret", "here", 0};
  Roster roster{{1}, {}};
  PendingConnections pending(listener, zero, roster);
  const Socket alone = stranger_from("127.0.0.2", port);  // the oldest, but not in the crowd
  std::vector<Socket> crowd;
  while (crowd.size() < kMost - 1 + kMore) {
    crowd.push_back(stranger_from("127.0.0.1", port));
    if (crowd.size() % 64 == 0) attend(pending);
  }
  attend(pending);
  EXPECT_FALSE(hung_up(alone));
  for (size_t i = 0; i < crowd.size(); ++i) EXPECT_EQ(hung_up(crowd[i]), i < kMore) << i;
  EXPECT_THAT(pending.last_refusal(), ::testing::HasSubstr("too many others connected from there"));
}

// Rank 0 of a job of two, which waits for the other.
struct ReceptionOfTwo {
  explicit ReceptionOfTwo(const char* secret) : zero{0, 2, secret, "here", 0} {}
  const Socket listener = listen_at({"127.0.0.1", 0});
  const Member zero;
  Roster roster{{1}, {}};
  PendingConnections pending{listener, zero, roster};
};

TEST(PendingConnections, AConnectionWaitsForADescriptorWithoutBusyLooping) {
  ReceptionOfTwo at("secret");
  const Socket stranger = stranger_from("127.0.0.1", local_end(at.listener).port);
  EXPECT_TRUE(std::isinf(at.pending.seconds_to_next_try()));
  {
    const testing::NoFreeDescriptors none;
    attend(at.pending);
    std::vector<pollfd> fds;
    at.pending.add_to(fds);
    EXPECT_EQ(::poll(fds.data(), fds.size(), 0), 0);
    EXPECT_THAT(at.pending.last_refusal(), ::testing::HasSubstr("could not be accepted: Too many open files"));
  }
  ASSERT_LE(at.pending.seconds_to_next_try(), 1);
  std::this_thread::sleep_for(std::chrono::duration<double>(at.pending.seconds_to_next_try()));
  attend(at.pending);
  EXPECT_FALSE(hung_up(stranger));
  std::vector<pollfd> fds;
  at.pending.add_to(fds);
  ASSERT_EQ(fds.size(), 2U) << "the stranger is served";
  EXPECT_EQ(fds[0].fd, at.listener.fd());
  EXPECT_TRUE(std::isinf(at.pending.seconds_to_next_try()));
}

// Without a secret the kernel identifies the user at the other end, which takes a descriptor: if accepting took the
// last one, the connection is refused.
TEST(PendingConnections, ClosesConnectionsOfUnidentifiedUsers) {
  ReceptionOfTwo at("");
  const Socket stranger = stranger_from("127.0.0.1", local_end(at.listener).port);
  {
    const testing::NoFreeDescriptors none(1);
    attend(at.pending);
  }
  EXPECT_TRUE(hung_up(stranger));
  EXPECT_THAT(at.pending.last_refusal(), ::testing::HasSubstr("cannot ask whose a connection is: Too many open files"));
  EXPECT_LE(at.pending.seconds_to_next_try(), 1);
}

TEST(PeerUser, IsTheUserAtTheOtherEnd) {
  for (const char* address : {"127.0.0.1", "::1", ""}) {
    std::optional<Socket> connected;
    std::string why;
    Socket listener;
    try {
      listener = listen_at({address, 0});
    } catch (const std::exception&) {
      continue;  // protocol not available
    }
    const std::string target = address[0] == '\0' ? "127.0.0.1" : address;
    connected = connect_to({target, local_end(listener).port}, deadline_in(5), why);
    ASSERT_TRUE(connected) << why;
    ASSERT_TRUE(wait_readable(listener, 5));
    const auto accepted = accept_from(listener);
    ASSERT_TRUE(accepted);
    const auto user = user_of_peer(*accepted);
    if (!user) GTEST_SKIP() << "the kernel does not report users of sockets";
    EXPECT_EQ(*user, ::geteuid()) << target;
    EXPECT_EQ(user_of_peer(*connected), ::geteuid()) << target;
  }
  EXPECT_FALSE(user_of_peer(Socket()));
  const testing::NoFreeDescriptors none;
  EXPECT_THAT([] { user_of_peer(Socket()); },
              ::testing::ThrowsMessage<CommError>("cannot ask whose a connection is: Too many open files"));
}

}  // namespace
}  // namespace witan
