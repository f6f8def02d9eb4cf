#include "witan/comm/peers/host_identity.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <thread>

#include "support/message_of.h"
#include "support/processes.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using testing::Ended;
using testing::in_processes;

HostIdentity identity(int64_t host, int64_t process, int64_t gpu) {
  return {host, process, gpu};
}

TEST(HostIdentity, DistinguishesThreadsProcessesAndHosts) {
  EXPECT_EQ(path_between(identity(1, 1, 7), identity(1, 1, 8)), PeerPath::address);
  EXPECT_EQ(path_between(identity(1, 1, 7), identity(1, 1, 7)), PeerPath::address) << "ranks that share a GPU";
  EXPECT_EQ(path_between(identity(1, 1, 7), identity(1, 2, 8)), PeerPath::handle);
  EXPECT_EQ(path_between(identity(1, 1, 7), identity(1, 2, 7)), PeerPath::handle) << "processes that share a GPU";
  EXPECT_EQ(path_between(identity(1, 1, 7), identity(2, 2, 8)), PeerPath::none);
  EXPECT_EQ(path_between(identity(1, 1, 7), identity(2, 1, 7)), PeerPath::none) << "equal numbers on different hosts";
  EXPECT_EQ(path_between(identity(1, 1, 7), identity(1, 2, HostIdentity::kNoGpu)), PeerPath::none);
  EXPECT_EQ(path_between(identity(1, 1, HostIdentity::kNoGpu), identity(1, 1, 7)), PeerPath::none);
}

TEST(HostIdentity, AddressesOfGpusDiffer) {
  std::set<int64_t> addresses;
  for (const int domain : {0, 1, 0xffff})
    for (const int bus : {0, 1, 0x1b, 0xff})
      for (const int device : {0, 1, 31}) addresses.insert(pci_address(domain, bus, device));
  EXPECT_EQ(addresses.size(), 36u);
  EXPECT_EQ(addresses.count(HostIdentity::kNoGpu), 0u);
}

// All threads of a process share an identity, and its children differ but share the host, even if they were forked
// after the identity was read.
TEST(HostIdentity, IsPerProcessAndSharesTheHost) {
  const HostIdentity here = identity_of_process();
  EXPECT_EQ(here.gpu, HostIdentity::kNoGpu);
  const auto ended = in_processes(3, [&](int) {
    const HostIdentity there = identity_of_process();
    HostIdentity of_thread;
    std::thread([&] { of_thread = identity_of_process(); }).join();
    EXPECT_EQ(of_thread, there);
    EXPECT_EQ(there.host, here.host);
    EXPECT_NE(there.process, here.process);
    return std::to_string(there.process);
  });
  testing::expect_whole(ended);
  std::set<std::string> processes;
  for (const Ended& one : ended) processes.insert(one.said);
  EXPECT_EQ(processes.size(), 3u);
}

TEST(HostIdentity, IslandsAreRanksThatAllReachEachOther) {
  const auto islands = [](int ranks, const std::set<std::pair<int, int>>& cut) {
    return islands_of(ranks, [&](int from, int to) { return cut.count({from, to}) == 0; });
  };
  using Islands = std::vector<int>;
  EXPECT_EQ(islands(0, {}), Islands());
  EXPECT_EQ(islands(1, {}), Islands({0}));
  EXPECT_EQ(islands(4, {}), Islands({0, 0, 0, 0}));
  EXPECT_EQ(islands(2, {{0, 1}}), Islands({0, 1})) << "one direction is not enough";
  EXPECT_EQ(islands(2, {{1, 0}}), Islands({0, 1}));
  EXPECT_EQ(islands(4, {{0, 2}, {0, 3}, {1, 2}, {1, 3}}), Islands({0, 0, 1, 1})) << "two hosts";
  EXPECT_EQ(islands(4, {{0, 1}, {0, 3}, {2, 1}, {2, 3}}), Islands({0, 1, 0, 1})) << "alternating hosts";
  EXPECT_EQ(islands(3, {{0, 2}}), Islands({0, 0, 1})) << "reaching only one of two is not enough";
}

TEST(HostIdentity, EnvironmentVariableDisablesPeers) {
  EXPECT_EQ(peers_allowed(nullptr), PeersAllowed::all);
  for (const PeersAllowed allowed : {PeersAllowed::none, PeersAllowed::host, PeersAllowed::all})
    EXPECT_EQ(peers_allowed(value_of(allowed)), allowed);
  EXPECT_EQ(peers_allowed("0"), PeersAllowed::none);
  for (const char* wrong : {"", "no", "2"})
    EXPECT_EQ(test::message_of<ConfigError>([&] { peers_allowed(wrong); }),
              std::string("environment: WITAN_COMM_PEERS = \"") + wrong + "\" must be 0, 1 or host");
}

}  // namespace
}  // namespace witan
