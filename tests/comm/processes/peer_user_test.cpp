#include "witan/comm/processes/peer_user.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "support/no_free_descriptors.h"
#include "witan/base/error.h"

namespace witan {
namespace {

TEST(PeerUser, IsTheUserOfTheOtherEnd) {
  for (const char* address : {"127.0.0.1", "::1", ""}) {
    std::optional<Socket> connected;
    std::string why;
    Socket listener;
    try {
      listener = listen_at({address, 0});
    } catch (const std::exception&) {
      continue;  // no such protocol here
    }
    const std::string target = address[0] == '\0' ? "127.0.0.1" : address;
    connected = connect_to({target, local_end(listener).port}, deadline_in(5), why);
    ASSERT_TRUE(connected) << why;
    ASSERT_TRUE(wait_readable(listener, 5));
    const auto accepted = accept_from(listener);
    ASSERT_TRUE(accepted);
    const auto user = user_of_peer(*accepted);
    if (!user) GTEST_SKIP() << "the kernel does not tell the users of sockets";
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
