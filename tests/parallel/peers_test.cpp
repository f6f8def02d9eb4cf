#include "witan/parallel/peers.h"

#include <gtest/gtest.h>

#include "support/message_of.h"

namespace witan {
namespace {

ParallelConfig on_gpus(int ranks, int expert_ranks) {
  return {.ranks = ranks, .expert_model_parallel_size = expert_ranks, .threads = 1, .device = "cuda"};
}

PeerAccess peers(const ParallelConfig& config, int rank = 0) {
  return peers_of(config, Layout(config, static_cast<int>(config.ranks), config.expert_model_parallel_size), rank);
}

TEST(Peers, AreUsedWithinAnIsland) {
  ParallelConfig config = on_gpus(4, 2);
  config.ranks_per_process = 1;
  EXPECT_EQ(peers(config), PeerAccess::wanted) << "processes not probed yet";
  config.peer_islands = {0, 0, 1, 2};
  EXPECT_EQ(peers(config, 0), PeerAccess::wanted);
  EXPECT_EQ(peers(config, 1), PeerAccess::wanted);
  EXPECT_EQ(peers(config, 2), PeerAccess::none);
  EXPECT_EQ(peers(config, 3), PeerAccess::none);
  config.peer_islands = {0, 0, 1};
  EXPECT_EQ(peers(config, 3), PeerAccess::wanted)
      << "islands of another number of ranks, as when planning a smaller layout";
  config.peer_islands.clear();
  config.peer_memory = false;
  EXPECT_EQ(peers(config), PeerAccess::none);
}

TEST(Peers, AreUsedOnAFewGpusOnly) {
  ParallelConfig config = on_gpus(4, 2);
  config.device = "cpu";
  EXPECT_EQ(peers(config), PeerAccess::none);
  config = on_gpus(32, 32);
  config.ranks_per_process = 1;
  EXPECT_EQ(peers(config), PeerAccess::none);
  config = on_gpus(32, 16);
  config.ranks_per_process = 1;
  EXPECT_EQ(peers(config, 31), PeerAccess::wanted);
}

// Ranks whose GPUs do not reach each other's memory have that of their host, if they are on one.
TEST(Peers, WithoutAccessShareMemoryOfTheirHost) {
  ParallelConfig config = on_gpus(4, 2);
  config.ranks_per_process = 1;
  config.peer_islands = {0, 1, 2, 2};
  EXPECT_EQ(peers(config, 0), PeerAccess::none) << "nobody has tried whether they share memory";
  config.host_islands = {0, 0, 1, 1};
  EXPECT_EQ(peers(config, 0), PeerAccess::host);
  EXPECT_EQ(peers(config, 1), PeerAccess::host);
  EXPECT_EQ(peers(config, 2), PeerAccess::wanted);
  config.host_islands = {0, 1, 2, 2};
  EXPECT_EQ(peers(config, 0), PeerAccess::none);

  config.host_islands.clear();
  config.through_host = true;
  EXPECT_EQ(peers(config, 2), PeerAccess::host) << "the environment allows nothing else";
  EXPECT_EQ(tensor_peers_of(config, Layout(config, 4, 2), 2), PeerAccess::none) << "rows of experts alone";
  config.peer_memory = false;
  EXPECT_EQ(peers(config, 2), PeerAccess::none);
  config.peer_memory = true;
  config.device = "cpu";
  EXPECT_EQ(peers(config, 2), PeerAccess::none);
}

// Within a host as between them: rows that go to each host once have a bounded capacity there.
TEST(Peers, OfAnExpertHostDoNotShareItsMemory) {
  ParallelConfig config = on_gpus(4, 4);
  config.ranks_per_process = 1;
  config.hierarchical_expert_parallel_size = 2;
  config.through_host = true;
  EXPECT_EQ(peers_of(config, Layout(config, 4, 4), 0), PeerAccess::none);
}

// Eight expert-parallel ranks, assumed to be four per host.
TEST(Peers, ErrorsNameSplitExpertHosts) {
  ParallelConfig config = on_gpus(8, 8);
  config.ranks_per_process = 1;
  config.hierarchical_expert_parallel_size = 4;
  const auto said = [&](std::vector<int> islands) {
    config.peer_islands = std::move(islands);
    return split_expert_host(config, Layout(config, 8, 8));
  };
  EXPECT_EQ(said({}), "") << "not probed yet";
  EXPECT_EQ(said({0, 0, 0, 0, 1, 1, 1, 1}), "");
  EXPECT_EQ(said({0, 0, 0, 0, 0, 0, 0, 0}), "");
  EXPECT_EQ(said({0, 0, 0, 0, 1, 1, 2, 2}),
            "hierarchical_expert_parallel_size = 4 takes ranks 4 and 6 for those of one host, but their GPUs do not "
            "reach each other's memory: set it to the number of expert-parallel ranks of a host");
  config.hierarchical_expert_parallel_size = 2;
  EXPECT_EQ(said({0, 0, 0, 0, 1, 1, 2, 2}), "");
  config.hierarchical_expert_parallel_size = 0;
  EXPECT_EQ(said({0, 0, 0, 1, 1, 1, 2, 2}), "") << "rows are sent to ranks directly";
}

TEST(Peers, MustExistIfPlanned) {
  const ParallelConfig config = on_gpus(4, 2);
  const Layout layout(config, 4, 2);
  require_peers(make_meta_groups(layout, 0, PeerAccess::wanted), PeerAccess::wanted);
  require_peers(make_meta_groups(layout, 0, PeerAccess::none), PeerAccess::none);
  EXPECT_EQ(test::message_of<DeviceError>(
                [&] { require_peers(make_meta_groups(layout, 0, PeerAccess::none), PeerAccess::wanted); }),
            "axis expert: its GPUs do not reach each other's memory, though the run was planned with it; set "
            "WITAN_COMM_PEERS=0 for all ranks, so that tokens for experts are exchanged through NCCL");
  require_peers(make_meta_groups(layout, 0, PeerAccess::host), PeerAccess::host);
  const ParallelConfig alone = on_gpus(4, 1);
  require_peers(make_meta_groups(Layout(alone, 4, 2), 0, PeerAccess::none), PeerAccess::wanted);
}

}  // namespace
}  // namespace witan
