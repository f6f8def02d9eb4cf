// Knowledge of ranks that have left, and their messages that an engine still carries.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <atomic>

#include "support/links.h"

namespace witan {
namespace {

using testing::drain;
using testing::Ended;
using testing::expect_whole;
using testing::free_port;
using testing::hear;
using testing::in_processes;
using testing::introduced_to;
using testing::kSoon;
using testing::launch_by_sockets;
using testing::leaves;
using ::testing::MatchesRegex;
using testing::meet_at_first;
using testing::on_links;
using testing::say;
using testing::send_frame;

TEST(ProcessLinks, ARankThatLeavesFailsOnlyRanksThatNeedIt) {
  const auto ended = on_links(4, [](Links& links) -> std::string {
    meet_at_first(links);
    if (links.rank() == 3) return "";
    EXPECT_TRUE(leaves(links, 3));
    if (links.rank() == 2) say(links, 3, "are you there?");
    EXPECT_EQ(links.connections(), links.rank() == 0 ? 3 : 1);
    return "";
  });
  expect_whole(ended);
  for (const Ended& one : ended) EXPECT_LT(one.seconds, kSoon);
}

// An engine that carries nothing. Rank r has sent 10 r + s messages to rank s, of which `missing` have not arrived.
class CountingEngine : public MessageEngine {
 public:
  struct State {
    std::atomic<uint64_t> missing = 0;
    std::atomic<int> to_send = 0, looks = 0;
    const testing::ProcessEvent* looked = nullptr;  // set at the eleventh poll
  };
  CountingEngine(int rank, State& state)
      : rank_(rank), missing_(state.missing), to_send_(state.to_send), looks_(state.looks), looked_(state.looked) {}

  Bytes address() const override { return {}; }
  void connect(int, std::span<const std::byte>, bool) override {}
  void send_control(int, uint64_t, uint32_t, std::span<const std::byte>) override {}
  void send_data(int, uint64_t, uint64_t, const std::byte*, int64_t) override {}
  void take(int, uint64_t, uint64_t, std::byte*, int64_t) override {}
  bool sending() const override { return to_send_ > 0; }
  bool sending(int, uint64_t) const override { return to_send_ > 0; }
  bool taking(int, uint64_t) const override { return false; }
  uint64_t sent(int to) const override { return static_cast<uint64_t>(10 * rank_ + to); }
  uint64_t received(int from) const override { return static_cast<uint64_t>(10 * from + rank_) - missing_; }
  bool progress() override {
    if (++looks_ == 11 && looked_ != nullptr) looked_->set();
    return to_send_ > 0 && to_send_-- > 0;
  }
  std::optional<Control> next_control() override { return std::nullopt; }
  std::optional<Trouble> trouble() const override { return std::nullopt; }
  int descriptor() const override { return never_.fd(); }
  bool arm() override { return true; }
  void drop(uint64_t) override {}

 private:
  const int rank_;
  const std::atomic<uint64_t>& missing_;
  std::atomic<int>&to_send_, &looks_;
  const testing::ProcessEvent* const looked_;
  const Socket never_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
};

TEST(ProcessLinks, ARankHasLeftOnceAllItsEngineMessagesArrived) {
  const auto ended = in_processes(4, [&, port = free_port()](int rank) -> std::string {
    CountingEngine::State engine{1};
    Links links(meet_peers(launch_by_sockets(rank, 4, port), 20), 20);
    meet_at_first(links);
    links.use(std::make_unique<CountingEngine>(rank, engine), false);
    if (rank == 3) return "";
    EXPECT_FALSE(leaves(links, 3, 0.5));
    engine.missing = 0;
    EXPECT_TRUE(leaves(links, 3));
    return "";
  });
  expect_whole(ended);
  for (const Ended& one : ended) EXPECT_LT(one.seconds, kSoon);
}

TEST(ProcessLinks, LeavingRanksFirstSendWhatTheirEngineHolds) {
  expect_whole(in_processes(2, [&, port = free_port()](int rank) -> std::string {
    CountingEngine::State engine{0, 3};
    {
      Links links(meet_peers(launch_by_sockets(rank, 2, port), 20), 20);
      links.use(std::make_unique<CountingEngine>(rank, engine), false);
    }
    EXPECT_EQ(engine.to_send, 0);
    return "";
  }));
}

// The last messages may be on their way to a rank that is still working.
TEST(ProcessLinks, AFinishedRankZeroKeepsMovingItsEnginesMessages) {
  const testing::ProcessEvent looked;
  expect_whole(in_processes(2, [&, port = free_port()](int rank) -> std::string {
    CountingEngine::State engine;
    if (rank == 0) engine.looked = &looked;
    {
      Links links(meet_peers(launch_by_sockets(rank, 2, port), 20), 20);
      links.use(std::make_unique<CountingEngine>(rank, engine), false);
      if (rank == 1) {
        EXPECT_TRUE(looked.wait()) << "rank 0 no longer polls";
      }
    }
    return "";
  }));
}

// A rank that could be held by a debugger, but has left, delays nobody.
TEST(ProcessLinks, ARankThatHasLeftDelaysNobody) {
  const auto ended = in_processes(4, [&, port = free_port()](int rank) -> std::string {
    const std::vector<int> held = {3};
    const auto hold = std::make_shared<DebugHold>(held, rank == 3 ? held : std::vector<int>{});
    Links links(meet_peers(launch_by_sockets(rank, 4, port), 20), 2.5, hold);
    meet_at_first(links);
    if (rank == 3) return "";
    EXPECT_TRUE(leaves(links, 3));
    return rank == 1 ? hear(links, 2, 1) : hear(links, 1);
  });
  EXPECT_EQ(ended[1].said, "rank 2 is late");
}

// Rank 2, played by the test, sends rank 1 a message that only rank 0 may send.
TEST(ProcessLinks, OnlyRankZeroMayReportDepartures) {
  const auto ended = in_processes(4, [&, port = free_port()](int rank) -> std::string {
    Met met = meet_peers(launch_by_sockets(rank, 4, port), 20);
    if (rank == 2) {
      const auto one = introduced_to(met, 1);
      send_frame(*one, {kDepartures}, pack_departures(std::vector<Departure>{{3, 0}}));
      drain(*one);
      return "";
    }
    Links links(std::move(met), 20);
    return hear(links, rank == 3 ? 1 : 3);
  });
  for (const size_t rank : {0, 1, 3}) {
    EXPECT_THAT(ended[rank].said, MatchesRegex("rank 2 on .* is lost: it sent a malformed message")) << rank;
    EXPECT_LT(ended[rank].seconds, kSoon);
  }
}

}  // namespace
}  // namespace witan
