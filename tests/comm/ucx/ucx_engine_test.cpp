// Two ends of the engine in one process, used alternately.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "support/processes.h"
#include "witan/comm/processes/message_engine.h"
#include "witan/comm/processes/socket.h"

namespace witan {
namespace {

constexpr uint64_t kChannel = 7, kOther = MessageEngine::kMostChannel;
constexpr int64_t kLong = int64_t{3} << 20, kShort = 100;  // bytes

MessageEngine::Bytes bytes_of(int64_t count, int seed) {
  MessageEngine::Bytes bytes(static_cast<size_t>(count));
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(i * 31 + i / 251 + static_cast<size_t>(seed));
  return bytes;
}

class UcxEngine : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!why_no_ucx().empty()) GTEST_SKIP() << why_no_ucx();
  }

  // Runs body() in its own process: UCX does not work over TCP in children of a process that has used it.
  template <class Body>
  void alone(const Body& body) {
    testing::expect_whole(testing::in_processes(1, [&](int) {
      connect(/*same_host=*/true);
      body();
      ends_.clear();
      return "";
    }));
  }

  void connect(bool same_host) {
    ends_.clear();
    for (int rank = 0; rank < 2; ++rank) ends_.push_back(make_ucx_engine(rank, 2));
    for (int rank = 0; rank < 2; ++rank) end(rank).connect(1 - rank, end(1 - rank).address(), same_host);
  }

  MessageEngine& end(int rank) { return *ends_[static_cast<size_t>(rank)]; }

  // Whether the condition became true within some seconds.
  template <class Done>
  bool until(const Done& done) {
    for (const Deadline late = deadline_in(10); !done();) {
      for (const auto& one : ends_) one->progress();
      if (seconds_since(late) > 0) return false;
    }
    return true;
  }

  std::optional<MessageEngine::Control> control(int rank) {
    std::optional<MessageEngine::Control> got;
    until([&] { return (got = end(rank).next_control()).has_value(); });
    return got;
  }

  std::vector<std::unique_ptr<MessageEngine>> ends_;
};

TEST_F(UcxEngine, DeliversDataRequestedBeforeOrAfterArrival) {
  alone([&] {
    for (const int64_t size : {kShort, kLong}) {
      const MessageEngine::Bytes first = bytes_of(size, 1), second = bytes_of(size, 2), third = bytes_of(size, 3);
      MessageEngine::Bytes got_first(first.size()), got_second(first.size()), got_third(first.size());
      end(1).take(0, kChannel, kChannel, got_first.data(), size);
      end(0).send_data(1, kOther, kOther, third.data(), size);
      end(0).send_data(1, kChannel, kChannel, first.data(), size);
      end(0).send_data(1, kChannel, kChannel, second.data(), size);
      ASSERT_TRUE(until([&] { return !end(1).taking(0, kChannel); }));
      EXPECT_EQ(got_first, first);
      end(1).take(0, kChannel, kChannel, got_second.data(), size);
      end(1).take(0, kOther, kOther, got_third.data(), size);
      ASSERT_TRUE(until([&] { return !end(1).taking(0, kChannel) && !end(1).taking(0, kOther) && !end(0).sending(); }));
      EXPECT_EQ(got_second, second);
      EXPECT_EQ(got_third, third);
    }
    EXPECT_EQ(end(0).sent(1), 6u);
    EXPECT_EQ(end(1).received(0), 6u);
    EXPECT_FALSE(end(0).trouble() || end(1).trouble());
  });
}

TEST_F(UcxEngine, KeepsTheOrderOfControlMessagesOfAnyLength) {
  alone([&] {
    const std::vector<int64_t> sizes = {kShort, 0, int64_t{1} << 20, 1, int64_t{1} << 19, kShort};
    for (size_t i = 0; i < sizes.size(); ++i)
      end(1).send_control(0, i % 2 == 0 ? kChannel : kOther, static_cast<uint32_t>(i % 4),
                          bytes_of(sizes[i], static_cast<int>(i)));
    for (size_t i = 0; i < sizes.size(); ++i) {
      const auto got = control(0);
      ASSERT_TRUE(got);
      EXPECT_EQ(got->from, 1);
      EXPECT_EQ(got->channel, i % 2 == 0 ? kChannel : kOther);
      EXPECT_EQ(got->kind, i % 4);
      EXPECT_EQ(got->bytes, bytes_of(sizes[i], static_cast<int>(i)));
    }
    EXPECT_EQ(end(0).received(1), sizes.size());
  });
}

TEST_F(UcxEngine, DescriptorSignalsPendingWork) {
  alone([&] {
    ASSERT_TRUE(until([&] { return end(0).arm(); }));
    const int fd = ::dup(end(0).descriptor());
    const Socket descriptor(fd);
    EXPECT_FALSE(wait_readable(descriptor, 0.05));
    end(1).send_control(0, kChannel, 0, bytes_of(kShort, 0));
    for (int i = 0; i < 100 && !wait_readable(descriptor, 0.05); ++i) end(1).progress();
    EXPECT_TRUE(wait_readable(descriptor, 1));
    EXPECT_TRUE(control(0));
  });
}

TEST_F(UcxEngine, RefusesDataOfAnotherSize) {
  alone([&] {
    for (const int64_t more : {-1, 1}) {
      connect(more < 0);
      const MessageEngine::Bytes sent = bytes_of(kShort, 1);
      MessageEngine::Bytes got(static_cast<size_t>(kShort + more));
      end(1).take(0, kChannel, kChannel, got.data(), kShort + more);
      end(0).send_data(1, kChannel, kChannel, sent.data(), kShort);
      ASSERT_TRUE(until([&] { return end(1).trouble().has_value(); }));
      EXPECT_EQ(end(1).trouble()->rank, 0);
      EXPECT_EQ(end(1).trouble()->why, "it sent a malformed message");
      EXPECT_TRUE(end(1).taking(0, kChannel)) << "the receiver keeps waiting";
    }
  });
}

TEST_F(UcxEngine, DoesNotWriteToDiscardedReceives) {
  alone([&] {
    for (const bool same_host : {true, false}) {
      connect(same_host);
      const MessageEngine::Bytes sent = bytes_of(kLong, 1);
      MessageEngine::Bytes got(static_cast<size_t>(kLong));
      const MessageEngine::Bytes untouched = got;
      end(1).take(0, kChannel, kChannel, got.data(), kLong);
      end(1).drop(kChannel);
      end(0).send_data(1, kChannel, kChannel, sent.data(), kLong);
      end(0).send_control(1, kChannel, 0, {});
      control(1);
      EXPECT_EQ(got, untouched);
      EXPECT_TRUE(end(1).taking(0, kChannel));
      // Nobody receives the data: the sender still gets its buffer back.
      end(0).drop(kChannel);
      EXPECT_TRUE(end(0).sending(1, kChannel));
    }
  });
}

}  // namespace
}  // namespace witan
