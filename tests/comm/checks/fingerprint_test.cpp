#include "witan/comm/checks/fingerprint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <vector>

#include "support/message_of.h"
#include "support/processes.h"
#include "support/thread_world.h"
#include "witan/comm/meta.h"

namespace {
// Flips one bit of the next message of at least this many bytes that this process sends over sockets; 0: none.
std::atomic<size_t> flip_from_bytes = 0;
std::atomic<int> messages_before = 0;  // messages of at least that size to send unchanged first
}  // namespace
// Replaces the C library's function.
extern "C" ssize_t send(int fd, const void* bytes, size_t count, int flags) {
  const size_t least = flip_from_bytes;
  if (least == 0 || count < least || messages_before-- > 0)
    return ::syscall(SYS_sendto, fd, bytes, count, flags, nullptr, 0);
  std::vector<char> copy(static_cast<const char*>(bytes), static_cast<const char*>(bytes) + count);
  copy[count / 2] ^= 16;
  const ssize_t sent = ::syscall(SYS_sendto, fd, copy.data(), count, flags, nullptr, 0);
  if (sent > static_cast<ssize_t>(count / 2)) flip_from_bytes = 0;
  return sent;
}

namespace witan {
namespace {

using testing::on_ranks;
using testing::ThreadRank;

TEST(Fingerprint, NamesTheRanksThatDiffer) {
  on_ranks(4, [](ThreadRank& rank) {
    const auto group = rank.everyone("replicate");
    const Tensor x = rank.normal({3, 5}, DType::f32, "x");
    EXPECT_EQ(ranks_that_differ(rank.stream, *group, x), std::vector<int>{});
    require_identical(rank.stream, *group, x, "w");

    if (rank.rank == 0) x.data<float>()[14] = std::nextafter(x.data<float>()[14], 9.0f);
    EXPECT_EQ(ranks_that_differ(rank.stream, *group, x), std::vector{0})
        << "a single bit on the first rank is detected";
    EXPECT_EQ(test::message_of<CommError>([&] { require_identical(rank.stream, *group, x, "model.w"); }),
              "axis replicate: model.w must be the same on its 4 ranks, but differs on rank(s) 0 of the group");

    if (rank.rank == 1) x.data<float>()[0] = 1;
    EXPECT_EQ(ranks_that_differ(rank.stream, *group, x), (std::vector{0, 1}));
  });
}

TEST(Fingerprint, DetectsShapesAndDtypes) {
  on_ranks(3, [](ThreadRank& rank) {
    const auto group = rank.everyone();
    EXPECT_EQ(ranks_that_differ(rank.stream, *group,
                                rank.stream.zeros(rank.rank == 2 ? Shape{2, 3} : Shape{3, 2}, DType::f32)),
              std::vector{2});
    EXPECT_EQ(ranks_that_differ(rank.stream, *group, rank.stream.zeros({4}, rank.rank == 1 ? DType::i32 : DType::f32)),
              std::vector{1});
    EXPECT_EQ(ranks_that_differ(rank.stream, *group, rank.stream.zeros({0}, DType::f32)), std::vector<int>{});
    EXPECT_THROW(ranks_that_differ(rank.stream, *group, rank.stream.zeros({3, 2}, DType::f32).transpose(0, 1)),
                 ShapeError);
  });
}

TEST(Fingerprint, TiesFavourTheLowestRank) {
  on_ranks(2, [](ThreadRank& rank) {
    const auto group = rank.everyone();
    EXPECT_EQ(ranks_that_differ(rank.stream, *group, rank.own_normal({2}, DType::f32, "x")), std::vector{1});
  });
}

TEST(Fingerprint, IsOnlyCountedOnMetaStreams) {
  testing::Rank rank(1);
  Stream meta({Device::Kind::meta}, Arena::meta(), rank.pool);
  MetaGroup group(8, 3, "replicate");
  require_identical(meta, group, meta.empty({7}, DType::f32), "w");
  EXPECT_EQ(group.sent().at("all_gather"), 7 * 8.0);
}

using test::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::in_processes;

constexpr int64_t kRows = 600;

struct Case {
  const char* name;
  // Runs on two ranks. Rank 0 sends part of `x` [2 kRows] to rank 1, in place where the call allows it.
  std::function<void(Group& group, Stream& stream, const Tensor& x)> call;
  int64_t from = 0;  // first element of rank 0's x that only rank 1 reads
};

std::vector<Case> cases() {
  const auto counts = [](Stream& stream) {
    const std::vector<int64_t> of = {kRows, kRows};
    const Tensor tensor = stream.empty({2}, DType::i64);
    stream.write(tensor, of.data());
    return tensor;
  };
  return {
      {"all_reduce", [](Group& group, Stream& stream, const Tensor& x) { group.all_reduce(stream, x); }, 1000},
      {"reduce_scatter",
       [](Group& group, Stream& stream, const Tensor& x) {
         group.reduce_scatter(stream, x.narrow(0, group.rank() * kRows, kRows), x);
       },
       1000},
      {"reduce_scatter_uneven",
       [](Group& group, Stream& stream, const Tensor& x) {
         group.reduce_scatter_uneven(stream, x, std::vector<int64_t>{0, 7, 2 * kRows});
       },
       1000},
      {"all_gather",
       [](Group& group, Stream& stream, const Tensor& x) {
         group.all_gather(stream, x, x.narrow(0, group.rank() * kRows, kRows));
       },
       100},
      {"all_gather_uneven",
       [](Group& group, Stream& stream, const Tensor& x) {
         group.all_gather_uneven(stream, std::vector<OwnedTensor>{{x.narrow(0, 0, 5), 1}, {x.narrow(0, 5, kRows), 0}});
       },
       100},
      {"all_to_all",
       [counts](Group& group, Stream& stream, const Tensor& x) {
         const Tensor out = stream.zeros({2 * kRows}, DType::f32);
         group.all_to_all(stream, out, counts(stream), x, counts(stream));
       },
       1000},
      {"all_to_all_equal",
       [](Group& group, Stream& stream, const Tensor& x) {
         group.all_to_all_equal(stream, stream.zeros({2 * kRows}, DType::f32), x);
       },
       1000},
      {"broadcast", [](Group& group, Stream& stream, const Tensor& x) { group.broadcast(stream, x, 0); }, 100},
      {"send",
       [](Group& group, Stream& stream, const Tensor& x) {
         group.rank() == 0 ? group.send(stream, x, 1) : group.recv(stream, x, 0);
       },
       100},
  };
}

// Flips a bit of another rank's tensor after that rank has entered the call and computed its checksums.
class Flip final : public CallObserver {
 public:
  explicit Flip(std::byte* at) : at_(at) {}
  void begins(const Group&, const Collective&, double) override {}
  void met() override { *at_ ^= std::byte{2}; }

 private:
  std::byte* at_;
};

TEST(MessageCheck, DetectsAFlippedBitBetweenThreads) {
  for (const Case& one : cases()) {
    std::atomic<std::byte*> of_rank_0 = nullptr;
    const std::string said = message_of<CommError>([&] {
      on_ranks(2, [&](ThreadRank& rank) {
        const auto group = rank.everyone();
        const Tensor x = rank.own_normal({2 * kRows}, DType::f32, "x");
        if (rank.rank == 0) of_rank_0 = x.raw();
        group->barrier(rank.stream);
        group->check_messages();
        Flip flip(of_rank_0 + one.from * 4);
        if (rank.rank == 1) group->observe(&flip);
        one.call(*group, rank.stream, x);
        group->observe(nullptr);
        group->barrier(rank.stream);
      });
    });
    EXPECT_THAT(said, AllOf(HasSubstr("axis data: check_messages: rank 1 received other bits than rank 0 sent, in "),
                            HasSubstr(std::string_view(one.name) == "send" ? "recv" : one.name), HasSubstr(" bytes")))
        << one.name;
  }
}

#ifndef __SANITIZE_THREAD__
// Receivers check the sums of an all_reduce. Rank 1 waits until rank 0 has written its values, a race that only this
// test creates.
TEST(MessageCheck, DetectsAFlippedBitInASum) {
  class FlipOfSum final : public CallObserver {
   public:
    explicit FlipOfSum(volatile float* at) : at_(at), before_(*at) {}
    void begins(const Group&, const Collective&, double) override {}
    void met() override {
      if (std::exchange(done_, true)) return;
      while (*at_ == before_) ::usleep(10);
      *at_ = -*at_;
    }

   private:
    volatile float* at_;
    float before_;
    bool done_ = false;
  };
  const std::string said = message_of<CommError>([&] {
    on_ranks(2, [&](ThreadRank& rank) {
      const auto group = rank.everyone();
      group->check_messages();
      const Tensor x = rank.own_normal({2 * kRows}, DType::f32, "x");
      FlipOfSum flip(x.data<float>());
      if (rank.rank == 1) group->observe(&flip);
      group->all_reduce(rank.stream, x);
      group->observe(nullptr);
      group->barrier(rank.stream);
    });
  });
  EXPECT_THAT(said, HasSubstr("rank 1 received other bits than rank 0 sent, in all_reduce float32 [1200]"));
}
#endif

// Uses the ranks' own connections, on which sent bytes can be modified. A reduction sends values and then sums.
std::vector<testing::Ended> with_a_flip(const Case& one, int unharmed) {
  const int port = testing::free_port();
  return in_processes(2, [&](int index) {
    ProcessWorld world(testing::launch_by_sockets(index, 2, port), {20, 20});
    world.run([&](int) {
      testing::ProcessRank rank(world);
      const auto group = rank.everyone();
      group->check_messages();
      const Tensor x = rank.normal({2 * kRows}, DType::f32, "x");
      rank.stream.trace_context().step = 3;
      if (index == 0) messages_before = unharmed;
      if (index == 0) flip_from_bytes = 1200;
      one.call(*group, rank.stream, x);
      group->barrier(rank.stream);
      flip_from_bytes = 0;
    });
    return "done";
  });
}

TEST(MessageCheck, DetectsAFlippedBitBetweenProcesses) {
  for (const Case& one : cases())
    for (int unharmed = 0; unharmed < (std::string_view(one.name) == "all_reduce" ? 2 : 1); ++unharmed) {
      const auto ended = with_a_flip(one, unharmed);
      for (const testing::Ended& process : ended) {
        EXPECT_EQ(process.code, 7) << one.name;
        EXPECT_THAT(process.said, AllOf(HasSubstr("check_messages: rank 1 received other bits than rank 0 sent, in "),
                                        HasSubstr("step 3")))
            << one.name << ", " << unharmed << " unharmed";
      }
    }
  for (const testing::Ended& process : with_a_flip(cases().front(), 2)) EXPECT_EQ(process.said, "done");
}

TEST(MessageCheck, ChecksumsMatchXxhash) {
  // The test vector of the xxHash project for empty input: XXH3_64bits with seed 0.
  EXPECT_EQ(message_sum(nullptr, 0), 0x2D06800538D394C2u);
  std::vector<std::byte> bytes(1000, std::byte{1});
  const uint64_t before = message_sum(bytes.data(), std::ssize(bytes));
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_NE(message_sum(bytes.data(), std::ssize(bytes)), before) << bit;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

TEST(MessageCheck, OneRankHasNothingToCheck) {
  on_ranks(1, [](ThreadRank& rank) {
    const auto group = rank.everyone();
    group->check_messages();
    const Tensor x = rank.own_normal({3}, DType::f32, "x");
    EXPECT_NO_THROW(group->all_reduce(rank.stream, x));
  });
}

}  // namespace
}  // namespace witan
