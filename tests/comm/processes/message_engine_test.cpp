// The engine that ranks agree on, and errors when they cannot.
#include "witan/comm/processes/message_engine.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "support/processes.h"

namespace witan {
namespace {

using testing::Ended;
using testing::expect_whole;
using testing::free_port;
using ::testing::HasSubstr;
using testing::in_processes;
using testing::kSoon;
using testing::launch_of;
using testing::ProcessRank;

constexpr int kRanks = 3;

// Each rank's engine after a collective. prepare(rank) runs before the rank looks for an engine.
std::vector<Ended> with_engines(const std::vector<CommEngine>& wanted, const std::function<void(int rank)>& prepare) {
  const int port = free_port();
  return in_processes(kRanks, [&](int rank) {
    prepare(rank);
    Launch launch = launch_of(rank, kRanks, port);
    launch.engine = wanted[static_cast<size_t>(rank)];
    ProcessWorld world(launch, {20, 20});
    world.run([&](int) {
      ProcessRank own(world);
      const Tensor x = own.tensor<int64_t>({1}, {rank});
      own.everyone()->all_reduce(own.stream, x);
      EXPECT_EQ(x.to_vector<int64_t>(), std::vector<int64_t>{3});
    });
    return world.engine().name + (world.engine().why.empty() ? "" : ": " + world.engine().why);
  });
}

std::vector<CommEngine> all(CommEngine engine) {
  return std::vector<CommEngine>(kRanks, engine);
}

// UCX cannot start with this setting.
void lose_transports(int rank) {
  if (rank == 2) ::setenv("UCX_TLS", "no_such_transport", /*overwrite=*/1);
}

// UCX then patches functions of the C library. A single rank has no thread that reads connections yet.
TEST(EngineChoice, LoadsUcxBeforeTheProcessHasThreads) {
  const auto is_loaded = [] { return ::dlopen("libucp.so.0", RTLD_NOW | RTLD_NOLOAD) != nullptr; };
  if (is_loaded()) GTEST_SKIP() << "another test of this process has loaded UCX";
  const int port = free_port();
  const auto ended = in_processes(2, [&](int index) -> std::string {
    Launch launch = launch_of(1, 2, port);
    launch.engine = index == 0 ? CommEngine::ucx : CommEngine::sockets;
    EXPECT_THROW(ProcessWorld(launch, {.meeting_seconds = 0.1, .deadline_seconds = 1}), CommError);
    return is_loaded() ? "loaded" : "not loaded";
  });
  expect_whole(ended);
  if (::dlopen("libucp.so.0", RTLD_NOW) != nullptr) {
    EXPECT_EQ(ended[0].said, "loaded");
  }
  EXPECT_EQ(ended[1].said, "not loaded");
}

TEST(EngineChoice, IsUcxIfAllRanksHaveIt) {
  if (!why_no_ucx().empty()) GTEST_SKIP() << why_no_ucx();
  for (const CommEngine wanted : {CommEngine::automatic, CommEngine::ucx}) {
    const auto ended = with_engines(all(wanted), [](int) {});
    expect_whole(ended);
    for (const Ended& one : ended) EXPECT_EQ(one.said, "UCX " + ucx_version());
  }
}

TEST(EngineChoice, IsSocketsIfRequested) {
  const auto ended = with_engines(all(CommEngine::sockets), lose_transports);
  expect_whole(ended);
  for (const Ended& one : ended) EXPECT_EQ(one.said, "TCP connections");
}

TEST(EngineChoice, IsSocketsIfOneRankLacksUcx) {
  const auto ended = with_engines(all(CommEngine::automatic), lose_transports);
  expect_whole(ended);
  for (const Ended& one : ended) {
    EXPECT_THAT(one.said, HasSubstr("TCP connections: rank "));
    if (why_no_ucx().empty()) {
      EXPECT_THAT(one.said, HasSubstr("rank 2 on "));
    }
    EXPECT_THAT(one.said, HasSubstr("UCX"));
  }
}

TEST(EngineChoice, RefusesUnavailableEngines) {
  if (!why_no_ucx().empty()) GTEST_SKIP() << why_no_ucx();
  const auto ended = with_engines(all(CommEngine::ucx), lose_transports);
  EXPECT_EQ(ended[2].code, static_cast<int>(ExitCode::config));
  EXPECT_THAT(ended[2].said, HasSubstr("WITAN_COMM_ENGINE is ucx, but UCX"));
  EXPECT_THAT(ended[2].said, HasSubstr("or set it to sockets, for all ranks"));
  for (const size_t rank : {0, 1}) {
    EXPECT_EQ(ended[rank].code, static_cast<int>(ExitCode::rank_lost));
    EXPECT_THAT(ended[rank].said, HasSubstr("stopped, as rank 2 on"));
    EXPECT_LT(ended[rank].seconds, kSoon);
  }
}

TEST(EngineChoice, NamesRanksWithDifferentRequests) {
  for (const auto& [other, name] :
       {std::pair(CommEngine::sockets, "sockets"), std::pair(CommEngine::automatic, "auto")}) {
    if (!why_no_ucx().empty() && other != CommEngine::sockets) continue;
    const CommEngine most = other == CommEngine::sockets ? CommEngine::automatic : CommEngine::ucx;
    const auto ended = with_engines({most, other, most}, [](int) {});
    for (const Ended& one : ended) {
      EXPECT_EQ(one.code, static_cast<int>(ExitCode::rank_lost));
      EXPECT_THAT(one.said, HasSubstr(std::string("ranks disagree on WITAN_COMM_ENGINE: it is ") + name_of(most) +
                                      " on rank 0 and " + name + " on rank 1; set it to the same for all of them"));
      EXPECT_LT(one.seconds, kSoon);
    }
  }
}

}  // namespace
}  // namespace witan
