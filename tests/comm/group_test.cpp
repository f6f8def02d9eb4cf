// Results of collectives on thread-ranks; threads_test.cpp tests failures.
#include "witan/comm/group.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "support/message_of.h"
#include "support/thread_world.h"
#include "witan/comm/meta.h"

namespace witan {
namespace {

using testing::on_ranks;
using testing::Rank;
using testing::ThreadRank;
using testing::values;

// Element i of rank r. Its sums are inexact in bfloat16 and float32, so their order and precision show.
double element(int rank, int64_t i) {
  return std::sin(1.0 + 37 * rank + 0.7 * static_cast<double>(i));
}

template <class T>
Tensor filled(ThreadRank& rank, const Shape& shape, int of_rank) {
  const Tensor x = rank.stream.empty(shape, dtype_of<T>());
  for (int64_t i = 0; i < x.elements(); ++i) {
    if constexpr (std::is_integral_v<T>) {
      x.data<T>()[i] = static_cast<T>(1000 * element(of_rank, i));
    } else {
      x.data<T>()[i] = static_cast<T>(element(of_rank, i));
    }
  }
  return x;
}

// The sum of element i over ranks [first, first + count): the largest power of two of ranks first, then the rest.
template <class T, class A>
A tree_sum(const std::vector<Tensor>& of_ranks, size_t first, size_t count, int64_t i) {
  if (count == 1) return static_cast<A>(of_ranks[first].data<T>()[i]);
  size_t half = 1;
  while (2 * half < count) half *= 2;
  return tree_sum<T, A>(of_ranks, first, half, i) + tree_sum<T, A>(of_ranks, first + half, count - half, i);
}

// The sum over ranks in the accumulation type.
template <class T>
std::vector<T> expected_sum(ThreadRank& rank, const Shape& shape) {
  using A = std::conditional_t<std::is_integral_v<T>, T, Accumulator<T>>;
  std::vector<T> sum;
  std::vector<Tensor> all;
  for (int r = 0; r < rank.size(); ++r) all.push_back(filled<T>(rank, shape, r));
  for (int64_t i = 0; i < shape.elements(); ++i) sum.push_back(static_cast<T>(tree_sum<T, A>(all, 0, all.size(), i)));
  return sum;
}

template <class T>
bool same_bits(const T* a, const T* b, size_t count) {
  return count == 0 || std::memcmp(a, b, count * sizeof(T)) == 0;
}

template <class T>
class Sums : public ::testing::Test {};
using AllTypes = ::testing::Types<float, bf16, double, int32_t, int64_t>;
TYPED_TEST_SUITE(Sums, AllTypes);

TYPED_TEST(Sums, UseTheSameTreeOnAllRanks) {
  using T = TypeParam;
  for (const int ranks : {1, 2, 3, 4, 7}) {
    on_ranks(ranks, [](ThreadRank& rank) {
      const auto group = rank.everyone();
      for (const int64_t n : {0, 1, 63, 64, 65, 130, 5000}) {
        const Tensor x = filled<T>(rank, {n}, rank.rank);
        group->all_reduce(rank.stream, x);
        const auto expected = expected_sum<T>(rank, {n});
        ASSERT_TRUE(same_bits(x.data<T>(), expected.data(), expected.size())) << "all_reduce of " << n;
      }
      for (const int64_t rows : {0, 1, 7, 700}) {
        const Shape all = {rows * rank.size(), 3};
        const Tensor in = filled<T>(rank, all, rank.rank), out = rank.stream.empty({rows, 3}, dtype_of<T>());
        group->reduce_scatter(rank.stream, out, in);
        const auto expected = expected_sum<T>(rank, all);
        ASSERT_TRUE(same_bits(out.data<T>(), expected.data() + rank.rank * rows * 3, static_cast<size_t>(rows * 3)));
      }
    });
  }
}

TEST(AllReduce, MaximumPropagatesNaN) {
  on_ranks(3, [](ThreadRank& rank) {
    const auto group = rank.everyone();
    const float nan = std::nanf(""), low = -std::numeric_limits<float>::infinity();
    const Tensor x = rank.tensor<float>(
        {4}, {static_cast<float>(rank.rank), -static_cast<float>(rank.rank), rank.rank == 1 ? nan : 5.0f, low});
    group->all_reduce(rank.stream, x, Reduce::max);
    EXPECT_EQ(x.data<float>()[0], 2);
    EXPECT_EQ(x.data<float>()[1], 0);
    EXPECT_TRUE(std::isnan(x.data<float>()[2]));
    EXPECT_EQ(x.data<float>()[3], low);
    const Tensor counts = rank.tensor<int64_t>({2}, {rank.rank, -7});
    group->all_reduce(rank.stream, counts, Reduce::max);
    EXPECT_EQ(counts.to_vector<int64_t>(), (std::vector<int64_t>{2, -7}));
  });
}

TEST(AllReduce, IsIndependentOfThreadsAndAcceptsScalars) {
  for (const int threads : {1, 3}) {
    ThreadWorld world(2, {.deadline_seconds = 20});
    world.run([&](int index) {
      Rank rank(threads);
      const auto group = world.group(index, {0, 1}, "data");
      const Tensor x = rank.normal({300001}, DType::bf16, std::to_string(index));
      const Tensor a = rank.normal({300001}, DType::bf16, "0"), b = rank.normal({300001}, DType::bf16, "1");
      group->all_reduce(rank.stream, x);
      for (int64_t i = 0; i < x.elements(); ++i)
        ASSERT_EQ(x.data<bf16>()[i].bits, bf16(float(a.data<bf16>()[i]) + float(b.data<bf16>()[i])).bits) << i;
      const Tensor scalar = rank.tensor<double>({}, {index + 0.5});
      group->all_reduce(rank.stream, scalar);
      EXPECT_EQ(scalar.data<double>()[0], 2.0);
    });
  }
}

TEST(AllGather, IsInRankOrderAndCanBeInPlace) {
  for (const int ranks : {1, 3}) {
    on_ranks(ranks, [](ThreadRank& rank) {
      const auto group = rank.everyone();
      const int64_t n = rank.size();
      const Tensor out = rank.poisoned({n * 2, 2}, DType::f32), mine = out.narrow(0, rank.rank * 2, 2);
      std::copy_n(filled<float>(rank, {2, 2}, rank.rank).data<float>(), 4, mine.data<float>());
      group->all_gather(rank.stream, out, mine);
      for (int r = 0; r < n; ++r)
        for (int64_t i = 0; i < 4; ++i) ASSERT_EQ(out.data<float>()[r * 4 + i], static_cast<float>(element(r, i)));
    });
  }
}

TEST(ReduceScatter, CanBeInPlace) {
  on_ranks(3, [](ThreadRank& rank) {
    const auto group = rank.everyone();
    const Tensor in = filled<double>(rank, {6}, rank.rank), out = in.narrow(0, rank.rank * 2, 2);
    group->reduce_scatter(rank.stream, out, in);
    const auto expected = expected_sum<double>(rank, {6});
    EXPECT_EQ(out.data<double>()[0], expected[static_cast<size_t>(rank.rank) * 2]);
    EXPECT_EQ(out.data<double>()[1], expected[static_cast<size_t>(rank.rank) * 2 + 1]);
  });
}

// Parts have arbitrary sizes: rank 1's is empty, and the last one is the largest.
std::vector<int64_t> uneven_begins(int ranks, int64_t elements) {
  std::vector<int64_t> begins = {0};
  for (int r = 1; r < ranks; ++r) begins.push_back(r == 2 ? begins.back() : std::min<int64_t>(r, elements));
  begins.push_back(elements);
  return begins;
}

std::vector<OwnedTensor> pieces_of(const Tensor& x, const std::vector<int64_t>& begins) {
  std::vector<OwnedTensor> pieces;
  for (int owner = 0; owner + 1 < static_cast<int>(begins.size()); ++owner) {
    const auto [begin, count] = part_of(begins, owner);
    pieces.push_back({x.reshape({x.elements()}).narrow(0, begin, count), owner});
  }
  return pieces;
}

TEST(Uneven, PartsOfASumHaveTheBitsOfTheWholeSum) {
  for (const int ranks : {1, 2, 3, 4}) {
    on_ranks(ranks, [](ThreadRank& rank) {
      const auto group = rank.everyone();
      for (const int64_t n : {0, 1, 5, 70001}) {
        const auto begins = uneven_begins(rank.size(), n);
        const Tensor x = filled<bf16>(rank, {n}, rank.rank);
        group->reduce_scatter_uneven(rank.stream, x, begins);
        const auto expected = expected_sum<bf16>(rank, {n});
        const auto [begin, count] = part_of(begins, rank.rank);
        ASSERT_TRUE(same_bits(x.data<bf16>() + begin, expected.data() + begin, static_cast<size_t>(count)));
        group->all_gather_uneven(rank.stream, pieces_of(x, begins));
        ASSERT_TRUE(same_bits(x.data<bf16>(), expected.data(), expected.size())) << n;
      }
    });
  }
}

TEST(Uneven, SupportsMaximum) {
  on_ranks(2, [](ThreadRank& rank) {
    const auto group = rank.everyone();
    const std::vector<int64_t> begins = {0, 2, 3};
    const float r = static_cast<float>(rank.rank);
    const Tensor x = rank.tensor<float>({3}, {r, 5 - r, 7 * r});
    group->reduce_scatter_uneven(rank.stream, x, begins, Reduce::max);
    group->all_gather_uneven(rank.stream, pieces_of(x, begins));
    EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{1, 5, 7}));
  });
}

TEST(Uneven, RefusesPartsThatDoNotCoverTheTensorOrDiffer) {
  on_ranks(1, [](ThreadRank& rank) {
    const auto group = rank.everyone();
    const Tensor x = rank.stream.zeros({2, 3}, DType::f32);
    for (const std::vector<int64_t>& wrong : {std::vector<int64_t>{0, 5}, {1, 6}, {0, 3, 6}, {6}, {0, 7}})
      EXPECT_EQ(
          test::message_of<ShapeError>([&] { group->reduce_scatter_uneven(rank.stream, x, wrong); }),
          "reduce_scatter_uneven over axis data: the parts of 1 ranks must cover the 6 elements of [2, 3] in order");
  });
  ThreadWorld world(2, {.deadline_seconds = 20});
  const std::string message = test::message_of<CommError>([&] {
    world.run([&](int index) {
      Rank rank(1);
      const auto group = world.group(index, {0, 1}, "data");
      group->reduce_scatter_uneven(rank.stream, rank.stream.zeros({4}, DType::f32),
                                   std::vector<int64_t>{0, index == 0 ? 2 : 3, 4});
    });
  });
  EXPECT_TRUE(
      message.find("reduce_scatter_uneven float32 [4] in uneven parts; ranks disagree on the sizes of an uneven "
                   "collective: rank 0 has [2, 2], rank 1 [3, 1]; compare their configurations") != std::string::npos)
      << message;
}

TEST(GatherPieces, SupportsAnyDtypeAndOwner) {
  on_ranks(3, [](ThreadRank& rank) {
    const auto group = rank.everyone();
    const auto r = static_cast<float>(rank.rank);
    const Tensor a = rank.tensor<float>({2}, {r, r + 10}), b = rank.tensor<int32_t>({1}, {rank.rank}),
                 none = rank.stream.empty({0}, DType::f64), c = rank.tensor<double>({1, 1}, {-r});
    group->all_gather_uneven(rank.stream, std::vector<OwnedTensor>{{a, 2}, {b, 0}, {none, 1}, {c, 2}});
    EXPECT_EQ(a.to_vector<float>(), (std::vector<float>{2, 12}));
    EXPECT_EQ(b.to_vector<int32_t>(), std::vector<int32_t>{0});
    EXPECT_EQ(c.to_vector<double>(), std::vector<double>{-2});
    group->all_gather_uneven(rank.stream, {});
    EXPECT_EQ(test::message_of<ShapeError>([&] {
                group->all_gather_uneven(rank.stream, std::vector<OwnedTensor>{{a, 3}});
              }),
              "all_gather_uneven over axis data: no rank 3 to own a piece among 3");
  });
}

TEST(GatherPieces, RefusesDifferentOwners) {
  ThreadWorld world(2, {.deadline_seconds = 20});
  const std::string message = test::message_of<CommError>([&] {
    world.run([&](int index) {
      Rank rank(1);
      world.group(index, {0, 1}, "data")
          ->all_gather_uneven(rank.stream, std::vector<OwnedTensor>{{rank.stream.zeros({4}, DType::f32), index}});
    });
  });
  EXPECT_NE(message.find("rank 1 calls all_gather_uneven of pieces that ranks own, expected as on rank 0"),
            std::string::npos)
      << message;
}

// The published demonstration: splits [[2, 3], [3, 3]] of [0..4] and [10..15].
TEST(AllToAll, PublishedExample) {
  on_ranks(2, [](ThreadRank& rank) {
    const auto group = rank.everyone("expert");
    const bool first = rank.rank == 0;
    const Tensor in =
        first ? rank.tensor<int32_t>({5}, {0, 1, 2, 3, 4}) : rank.tensor<int32_t>({6}, {10, 11, 12, 13, 14, 15});
    const Tensor send = first ? rank.tensor<int64_t>({2}, {2, 3}) : rank.tensor<int64_t>({2}, {3, 3});
    const Tensor receive = rank.stream.empty({2}, DType::i64);
    group->all_to_all_equal(rank.stream, receive, send);
    EXPECT_EQ(receive.to_vector<int64_t>(), (first ? std::vector<int64_t>{2, 3} : std::vector<int64_t>{3, 3}));
    const Tensor out = rank.stream.empty({first ? 5 : 6}, DType::i32);
    group->all_to_all(rank.stream, out, receive, in, send);
    EXPECT_EQ(out.to_vector<int32_t>(),
              (first ? std::vector<int32_t>{0, 1, 10, 11, 12} : std::vector<int32_t>{2, 3, 4, 13, 14, 15}));
  });
}

TEST(AllToAll, LeavesUnreceivedRowsUnchanged) {
  // counts[from][to]
  const std::vector<std::vector<int64_t>> counts = {{0, 2, 1, 0}, {3, 0, 0, 0}, {0, 0, 0, 0}, {1, 4, 0, 2}};
  on_ranks(4, [&](ThreadRank& rank) {
    const auto group = rank.everyone("expert");
    const auto me = static_cast<size_t>(rank.rank);
    std::vector<int64_t> sends = counts[me], receives;
    for (const auto& row : counts) receives.push_back(row[me]);
    const int64_t rows = std::accumulate(sends.begin(), sends.end(), int64_t{0});
    const Tensor in = rank.stream.empty({rows, 2}, DType::f64);
    for (int64_t row = 0, to = 0, i = 0; row < rows; ++row, ++i) {
      while (i == sends[static_cast<size_t>(to)]) ++to, i = 0;
      in.data<double>()[2 * row] = static_cast<double>(100 * rank.rank + 10 * to + i);
      in.data<double>()[2 * row + 1] = -1;
    }
    const Tensor out = rank.poisoned({9, 2}, DType::f64);
    group->all_to_all(rank.stream, out, rank.tensor<int64_t>({4}, receives), in, rank.tensor<int64_t>({4}, sends));
    int64_t row = 0;
    for (int64_t from = 0; from < 4; ++from)
      for (int64_t i = 0; i < receives[static_cast<size_t>(from)]; ++i, ++row) {
        ASSERT_EQ(out.data<double>()[2 * row], static_cast<double>(100 * from + 10 * rank.rank + i));
        ASSERT_EQ(out.data<double>()[2 * row + 1], -1);
      }
    for (; row < 9; ++row) ASSERT_TRUE(std::isnan(out.data<double>()[2 * row]));
  });
}

TEST(Broadcast, CopiesFromItsRoot) {
  on_ranks(3, [](ThreadRank& rank) {
    const auto group = rank.everyone();
    for (int root = 0; root < 3; ++root) {
      const Tensor x = filled<bf16>(rank, {2, 5}, rank.rank);
      group->broadcast(rank.stream, x, root);
      EXPECT_EQ(values(x), values(filled<bf16>(rank, {2, 5}, root)));
    }
  });
}

TEST(SendRecv, WorksAroundARing) {
  on_ranks(4, [](ThreadRank& rank) {
    const auto group = rank.everyone("pipeline");
    const int next = (rank.rank + 1) % 4, before = (rank.rank + 3) % 4;
    const Tensor in = filled<float>(rank, {100}, rank.rank), out = rank.poisoned({100}, DType::f32);
    for (int round = 0; round < 50; ++round) {
      if (rank.rank % 2 == 0) group->send(rank.stream, in, next);
      group->recv(rank.stream, out, before);
      if (rank.rank % 2 == 1) group->send(rank.stream, in, next);
      ASSERT_EQ(values(out), values(filled<float>(rank, {100}, before)));
    }
  });
}

TEST(Group, SubgroupsWorkConcurrentlyInTheirOwnOrder) {
  on_ranks(4, [](ThreadRank& rank) {
    // Ranks of a group are numbered in the order of its list, which is descending here.
    const auto pair = rank.world.group(rank.rank, rank.rank < 2 ? std::vector{1, 0} : std::vector{3, 2}, "expert");
    EXPECT_EQ(pair->size(), 2);
    EXPECT_EQ(pair->rank(), 1 - rank.rank % 2);
    EXPECT_EQ(pair->name(), "expert");
    const auto all = rank.everyone();
    for (int round = 0; round < 100; ++round) {
      const Tensor in = rank.tensor<int64_t>({1}, {rank.rank}), out = rank.stream.empty({2}, DType::i64);
      pair->all_gather(rank.stream, out, in);
      ASSERT_EQ(out.to_vector<int64_t>(), (rank.rank < 2 ? std::vector<int64_t>{1, 0} : std::vector<int64_t>{3, 2}));
      all->all_reduce(rank.stream, in);
      ASSERT_EQ(in.data<int64_t>()[0], 6);
    }
  });
}

TEST(Group, OneRankCopiesOrDoesNothing) {
  Rank rank(1);
  MetaGroup group(1, 0, "expert");
  Stream& stream = rank.stream;
  const Tensor x = rank.normal({4, 2}, DType::f32, "x"), y = rank.poisoned({4, 2}, DType::f32);
  const auto before = values(x);
  group.all_reduce(stream, x);
  group.broadcast(stream, x, 0);
  group.barrier(stream);
  EXPECT_EQ(values(x), before);
  for (const auto& call : std::vector<std::function<void()>>{[&] { group.all_gather(stream, y, x); },
                                                             [&] { group.reduce_scatter(stream, y, x); },
                                                             [&] { group.all_to_all_equal(stream, y, x); }}) {
    std::ranges::fill(y.span<float>(), 0.0f);
    call();
    EXPECT_EQ(values(y), before);
  }
  const Tensor out = rank.poisoned({3, 2}, DType::f32), count = rank.tensor<int64_t>({1}, {2});
  group.all_to_all(stream, out, count, x, count);
  EXPECT_EQ(out.data<float>()[3], x.data<float>()[3]);
  EXPECT_TRUE(std::isnan(out.data<float>()[4]));
  group.reduce_scatter_uneven(stream, x, std::vector<int64_t>{0, 8});
  group.all_gather_uneven(stream, std::vector<OwnedTensor>{{x, 0}});
  EXPECT_EQ(values(x), before);
  EXPECT_TRUE(group.sent().empty()) << "a rank sends nothing to itself";

  const Tensor five = rank.tensor<int64_t>({1}, {5}), four = rank.tensor<int64_t>({1}, {4});
  EXPECT_EQ(test::message_of<CommError>([&] { group.all_to_all(stream, out, four, x, four); }),
            "axis expert: all_to_all: 4 rows from [4, 2] do not fit into [3, 2]");
  EXPECT_EQ(test::message_of<CommError>([&] { group.all_to_all(stream, out, five, x, four); }),
            "axis expert: all_to_all: the only rank sends 4 rows to itself and expects 5");
}

TEST(Group, RefusesTensorsThatDoNotFit) {
  Rank rank(1);
  Stream meta({Device::Kind::meta}, Arena::meta(), rank.pool);
  MetaGroup group(2, 0, "data");
  const auto make = [&](const Shape& shape, DType dtype = DType::f32) { return meta.empty(shape, dtype); };
  EXPECT_EQ(
      test::message_of<ShapeError>([&] {
        group.all_gather(meta, make({3, 2}), make({2, 2}));
      }),
      "all_gather over axis data of 2 ranks: out float32 [3, 2] and in float32 [2, 2] must have one dtype and row "
      "shape, and rows as 2:1");
  EXPECT_THROW(group.all_gather(meta, make({4, 2}), make({2, 3})), ShapeError);
  EXPECT_THROW(group.all_gather(meta, make({4, 2}), make({2, 2}, DType::bf16)), ShapeError);
  EXPECT_THROW(group.all_gather(meta, make({}), make({})), ShapeError);
  EXPECT_THROW(group.reduce_scatter(meta, make({2}), make({3})), ShapeError);
  EXPECT_THROW(group.all_to_all_equal(meta, make({3}), make({3})), ShapeError);
  EXPECT_THROW(group.all_to_all_equal(meta, make({4}), make({2})), ShapeError);
  const Tensor counts = make({2}, DType::i64);
  EXPECT_EQ(test::message_of<ShapeError>([&] { group.all_to_all(meta, make({3}), make({2}), make({3}), counts); }),
            "all_to_all: recv_counts must be int64 [2], got float32 [2]");
  EXPECT_THROW(group.all_to_all(meta, make({3}), counts, make({3}), make({3}, DType::i64)), ShapeError);
  EXPECT_THROW(group.all_to_all(meta, make({3, 2}), counts, make({3, 1}), counts), ShapeError);
  EXPECT_EQ(test::message_of<ShapeError>([&] {
              group.all_reduce(meta, make({2, 3}).transpose(0, 1));
            }),
            "all_reduce: inout [3, 2] must be contiguous");
  EXPECT_EQ(test::message_of<ShapeError>([&] { group.all_reduce(meta, rank.stream.empty({1}, DType::f32)); }),
            "all_reduce: inout is on cpu but the stream is on meta");
  EXPECT_THROW(group.all_reduce(meta, {}), ShapeError);
  EXPECT_THROW(group.broadcast(meta, make({1}), 2), ShapeError);
  EXPECT_THROW(group.send(meta, make({1}), 0), ShapeError);
  EXPECT_THROW(group.recv(meta, make({1}), -1), ShapeError);
  EXPECT_TRUE(group.sent().empty());
}

TEST(Group, TenThousandMixedCallsOfFourRanksComplete) {
  on_ranks(4, [](ThreadRank& rank) {
    const auto all = rank.everyone(),
               half = rank.world.group(rank.rank, rank.rank % 2 ? std::vector{1, 3} : std::vector{0, 2}, "half");
    const Philox rng(11, Philox::stream_of("calls"));
    Stream& stream = rank.stream;
    const Tensor ones = rank.tensor<int64_t>({4}, {1, 1, 1, 1});
    const Tensor x = stream.empty({4, 3}, DType::f64), y = stream.empty({4, 3}, DType::f64),
                 wide = stream.empty({16, 3}, DType::f64);
    const Tensor part = stream.empty({1, 3}, DType::f64);
    for (int64_t call = 0; call < 10000; ++call) {
      std::ranges::fill(x.span<double>(), static_cast<double>(call + rank.rank));
      const double sum = 4.0 * static_cast<double>(call) + 6;
      switch (static_cast<int>(rng.uniform(static_cast<uint64_t>(call)) * 8)) {
        case 0:
          all->all_reduce(stream, x);
          ASSERT_EQ(x.data<double>()[11], sum);
          break;
        case 1:
          all->reduce_scatter(stream, part, x);
          ASSERT_EQ(part.data<double>()[2], sum);
          break;
        case 2:
          all->all_gather(stream, wide, x);
          for (int r = 0; r < 4; ++r) ASSERT_EQ(wide.data<double>()[12 * r], static_cast<double>(call + r));
          break;
        case 3:
          all->all_to_all(stream, y, ones, x, ones);
          for (int r = 0; r < 4; ++r) ASSERT_EQ(y.data<double>()[3 * r], static_cast<double>(call + r));
          break;
        case 4:
          all->broadcast(stream, x, static_cast<int>(call % 4));
          ASSERT_EQ(x.data<double>()[0], static_cast<double>(call + call % 4));
          break;
        case 5:
          half->all_reduce(stream, x);
          ASSERT_EQ(x.data<double>()[0], static_cast<double>(2 * call + 2 * (rank.rank % 2) + 2));
          break;
        case 6:
          if (half->rank() == 0) {
            half->send(stream, x, 1);
          } else {
            half->recv(stream, x, 0);
          }
          ASSERT_EQ(x.data<double>()[0], static_cast<double>(call + rank.rank % 2));
          break;
        default:
          all->barrier(stream);
      }
    }
  });
}

TEST(GatherPieces, RefusesDifferentSizesAndDtypes) {
  const auto refused = [](const Shape& shape, DType dtype) {
    ThreadWorld world(2, {.deadline_seconds = 20});
    EXPECT_THROW(world.run([&](int index) {
      Rank rank(1);
      const Tensor piece = index == 0 ? rank.stream.zeros({4}, DType::f32) : rank.stream.zeros(shape, dtype);
      world.group(index, {0, 1}, "data")->all_gather_uneven(rank.stream, std::vector<OwnedTensor>{{piece, 0}});
    }),
                 CommError)
        << dtype << " " << shape;
  };
  refused({5}, DType::f32);
  refused({4}, DType::i32);
  refused({2}, DType::f64);  // as many bytes
}

}  // namespace
}  // namespace witan
