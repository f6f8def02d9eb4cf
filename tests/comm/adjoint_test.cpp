// Every collective that sums or moves data is a linear map of the values of all ranks, and its adjoint is another
// collective: <A x, g> = <x, A^T g>, with inner products over all ranks. Ops rely on this (ops/shape/redistribute.h).
#include <gtest/gtest.h>

#include <functional>

#include "support/thread_world.h"
#include "witan/comm/group.h"

namespace witan {
namespace {

using testing::on_ranks;
using testing::ThreadRank;

// Fills the poisoned `out` from `in`.
using Map = std::function<void(ThreadRank&, Group&, const Tensor& out, const Tensor& in)>;

double product(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (int64_t i = 0; i < a.elements(); ++i) sum += a.data<double>()[i] * b.data<double>()[i];
  return sum;
}

// `in` and `out` give the number of elements of a rank among n.
void expect_adjoint(const char* name, const Map& map, const Map& adjoint, const std::function<int64_t(int, int)>& in,
                    const std::function<int64_t(int, int)>& out) {
  for (const int n : {2, 3, 4}) {
    SCOPED_TRACE(cat(name, " on ", n, " ranks"));
    std::vector<double> forward(static_cast<size_t>(n)), backward(static_cast<size_t>(n));
    on_ranks(n, [&](ThreadRank& rank) {
      const auto group = rank.everyone();
      const auto r = static_cast<size_t>(rank.rank);
      const Tensor x = rank.own_normal({in(rank.rank, n)}, DType::f64, "x"),
                   g = rank.own_normal({out(rank.rank, n)}, DType::f64, "g"), y = rank.poisoned(g.shape(), DType::f64),
                   dx = rank.poisoned(x.shape(), DType::f64);
      map(rank, *group, y, x);
      adjoint(rank, *group, dx, g);
      forward[r] = product(y, g);
      backward[r] = product(x, dx);
    });
    const double expected = std::accumulate(forward.begin(), forward.end(), 0.0);
    EXPECT_NEAR(std::accumulate(backward.begin(), backward.end(), 0.0), expected, 1e-12 * (1 + std::abs(expected)));
    EXPECT_GT(std::abs(expected), 1e-3) << "zeros would prove nothing";
  }
}

constexpr int64_t kPart = 35;
int64_t part(int, int) {
  return kPart;
}
int64_t whole(int, int n) {
  return n * kPart;
}

void all_reduce(ThreadRank& rank, Group& group, const Tensor& out, const Tensor& in) {
  rank.stream.copy(out, in);
  group.all_reduce(rank.stream, out);
}
void all_gather(ThreadRank& rank, Group& group, const Tensor& out, const Tensor& in) {
  group.all_gather(rank.stream, out, in);
}
void reduce_scatter(ThreadRank& rank, Group& group, const Tensor& out, const Tensor& in) {
  group.reduce_scatter(rank.stream, out, in);
}
void all_to_all_equal(ThreadRank& rank, Group& group, const Tensor& out, const Tensor& in) {
  group.all_to_all_equal(rank.stream, out, in);
}

TEST(Adjoint, AllReduceIsSelfAdjoint) {
  expect_adjoint("all_reduce", all_reduce, all_reduce, part, part);
}

TEST(Adjoint, AllGatherAndReduceScatterAreAdjoint) {
  expect_adjoint("all_gather", all_gather, reduce_scatter, part, whole);
  expect_adjoint("reduce_scatter", reduce_scatter, all_gather, whole, part);
}

TEST(Adjoint, AllToAllOfEqualPartsIsSelfAdjoint) {
  expect_adjoint("all_to_all_equal", all_to_all_equal, all_to_all_equal, whole, whole);
}

// Parts of a bucket for each owner; the first owner has none.
std::vector<int64_t> uneven_begins(int n) {
  std::vector<int64_t> begins = {0};
  for (int64_t owner = 0; owner < n; ++owner) begins.push_back(begins.back() + 11 * owner);
  return begins;
}
int64_t uneven_part(int rank, int) {
  return 11 * rank;
}
int64_t uneven_whole(int, int n) {
  return uneven_begins(n).back();
}

TEST(Adjoint, UnevenReductionAndGatherAreAdjoint) {
  const Map reduce = [](ThreadRank& rank, Group& group, const Tensor& out, const Tensor& in) {
    const std::vector<int64_t> begins = uneven_begins(group.size());
    const Tensor buffer = rank.stream.empty(in.shape(), DType::f64);
    rank.stream.copy(buffer, in);
    group.reduce_scatter_uneven(rank.stream, buffer, begins);
    const auto [begin, count] = part_of(begins, group.rank());
    rank.stream.copy(out, buffer.narrow(0, begin, count));
  };
  const Map gather = [](ThreadRank& rank, Group& group, const Tensor& out, const Tensor& in) {
    const std::vector<int64_t> begins = uneven_begins(group.size());
    std::vector<OwnedTensor> pieces;
    for (int owner = 0; owner < group.size(); ++owner) {
      const auto [begin, count] = part_of(begins, owner);
      const Tensor piece = out.narrow(0, begin, count);
      if (owner == group.rank()) rank.stream.copy(piece, in);
      if (count > 0) pieces.push_back({piece, owner});
    }
    group.all_gather_uneven(rank.stream, pieces);
  };
  expect_adjoint("reduce_scatter_uneven", reduce, gather, uneven_whole, uneven_part);
  expect_adjoint("all_gather_uneven", gather, reduce, uneven_part, uneven_whole);
}

// Rank r sends (2 r + 3 p) % 4 rows to rank p, sometimes none.
int64_t sends(int from, int to) {
  return (2 * from + 3 * to) % 4;
}

TEST(Adjoint, AllToAllIsAdjointToTheReversedExchange) {
  const auto exchange = [](bool reversed) {
    return [reversed](ThreadRank& rank, Group& group, const Tensor& out, const Tensor& in) {
      std::vector<int64_t> to, from;
      for (int peer = 0; peer < group.size(); ++peer) {
        to.push_back(sends(rank.rank, peer));
        from.push_back(sends(peer, rank.rank));
      }
      if (reversed) std::swap(to, from);
      const int64_t n = group.size();
      group.all_to_all(rank.stream, out, rank.tensor({n}, from), in, rank.tensor({n}, to));
    };
  };
  const auto sum = [](bool received) {
    return [received](int rank, int n) {
      int64_t rows = 0;
      for (int peer = 0; peer < n; ++peer) rows += received ? sends(peer, rank) : sends(rank, peer);
      return rows;
    };
  };
  expect_adjoint("all_to_all", exchange(false), exchange(true), sum(false), sum(true));
}

// The result of a broadcast depends only on the root: the gradient of other ranks is 0, and the root's is the sum.
TEST(Adjoint, BroadcastSumsAtItsRoot) {
  constexpr int kRoot = 1;
  const Map broadcast = [](ThreadRank& rank, Group& group, const Tensor& out, const Tensor& in) {
    rank.stream.copy(out, in);
    group.broadcast(rank.stream, out, kRoot);
  };
  const Map sum_at_root = [](ThreadRank& rank, Group& group, const Tensor& out, const Tensor& in) {
    all_reduce(rank, group, out, in);
    if (group.rank() != kRoot) rank.stream.zero(out);
  };
  expect_adjoint("broadcast", broadcast, sum_at_root, part, part);
}

// As in a pipeline, each rank sends to the next, and the first receives nothing.
TEST(Adjoint, SendIsAdjointToTheReversedSend) {
  const auto shift = [](int by) {
    return [by](ThreadRank& rank, Group& group, const Tensor& out, const Tensor& in) {
      const int to = group.rank() + by, from = group.rank() - by;
      const auto exists = [&](int peer) { return peer >= 0 && peer < group.size(); };
      const auto send = [&] {
        if (exists(to)) group.send(rank.stream, in, to);
      };
      if (group.rank() % 2 == 0) send();
      if (exists(from))
        group.recv(rank.stream, out, from);
      else
        rank.stream.zero(out);
      if (group.rank() % 2 == 1) send();
    };
  };
  expect_adjoint("send", shift(1), shift(-1), part, part);
}

}  // namespace
}  // namespace witan
