// Collectives of processes on this machine have the bits of collectives of threads.
#include "witan/comm/processes/process_group.h"

#include <gtest/gtest.h>

#include "support/processes.h"
#include "support/thread_world.h"

namespace witan {
namespace {

using testing::expect_whole;
using testing::on_processes;
using testing::on_ranks;
using testing::ProcessRank;
using testing::ThreadRank;

void append(std::string& bytes, const Tensor& tensor) {
  bytes.append(reinterpret_cast<const char*>(tensor.raw()), static_cast<size_t>(tensor.bytes()));
}

// Values of every dtype that differ between ranks; integers are large enough for sums to wrap.
template <class AnyRank>
Tensor own_values(AnyRank& rank, const Shape& shape, DType dtype) {
  const std::string name = "rank " + std::to_string(rank.rank);
  if (is_floating(dtype)) return rank.normal(shape, dtype, name);
  Tensor out = rank.stream.empty(shape, dtype);
  const Philox rng(3, Philox::stream_of(name));
  auto* bytes = reinterpret_cast<uint32_t*>(out.raw());
  for (int64_t i = 0; i < out.bytes() / 4; ++i) bytes[i] = rng.bits(static_cast<uint64_t>(i));
  return out;
}

// Parts of a tensor: a third for each rank, rounded down; the last rank has the rest.
std::vector<int64_t> thirds(int ranks, int64_t elements) {
  std::vector<int64_t> begins;
  for (int r = 0; r < ranks; ++r) begins.push_back(std::min(r * (elements / 3), elements));
  begins.push_back(elements);
  return begins;
}

// The results of every collective on this rank as bytes, for any kind of ranks.
template <class AnyRank>
std::string results(AnyRank& rank, Group& group, int64_t rows) {
  Stream& stream = rank.stream;
  const int n = group.size(), me = group.rank();
  std::string bytes;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64, DType::i32, DType::i64}) {
    for (const Reduce how : {Reduce::sum, Reduce::max}) {
      const Tensor all = own_values(rank, {rows, 3}, dtype);
      group.all_reduce(stream, all, how);
      append(bytes, all);
      const Tensor in = own_values(rank, {rows * n, 3}, dtype), out = stream.zeros({rows, 3}, dtype);
      group.reduce_scatter(stream, out, in, how);
      append(bytes, out);
      group.reduce_scatter(stream, in.narrow(0, me * rows, rows), in, how);  // in place
      append(bytes, in.narrow(0, me * rows, rows));
      const Tensor uneven = own_values(rank, {rows, 3}, dtype);
      group.reduce_scatter_uneven(stream, uneven, thirds(n, rows * 3), how);
      const auto [begin, count] = part_of(thirds(n, rows * 3), me);
      append(bytes, uneven.reshape({rows * 3}).narrow(0, begin, count));
    }
    const Tensor gathered = stream.zeros({rows * n, 3}, dtype);
    group.all_gather(stream, gathered, own_values(rank, {rows, 3}, dtype));
    append(bytes, gathered);
    const Tensor pieced = own_values(rank, {rows, 3}, dtype);
    const Tensor other = own_values(rank, {2 * rows}, DType::f32);
    group.all_gather_uneven(stream, std::vector<OwnedTensor>{{pieced.narrow(0, 0, rows / 2), n - 1},
                                                             {other, 0},
                                                             {pieced.narrow(0, rows / 2, rows - rows / 2), 1}});
    append(bytes, other);
    append(bytes, pieced);
    const Tensor swapped = stream.zeros({rows * n, 3}, dtype);
    group.all_to_all_equal(stream, swapped, own_values(rank, {rows * n, 3}, dtype));
    append(bytes, swapped);
    const Tensor told = own_values(rank, {rows, 3}, dtype);
    group.broadcast(stream, told, n - 1);
    append(bytes, told);
  }
  return bytes;
}

// Uneven rows, with none for some ranks; then a ring of sends and receives, where even ranks send first.
template <class AnyRank>
std::string uneven_results(AnyRank& rank, Group& group) {
  Stream& stream = rank.stream;
  const int n = group.size(), me = group.rank();
  const auto count = [&](int from, int to) { return int64_t{3} * from + 2 * to - (to == 1 ? 2 * to + 3 * from : 0); };
  std::vector<int64_t> sends, receives;
  for (int peer = 0; peer < n; ++peer) {
    sends.push_back(count(me, peer));
    receives.push_back(count(peer, me));
  }
  std::string bytes;
  const Tensor out = stream.zeros({100, 4}, DType::f32);
  group.all_to_all(stream, out, rank.template tensor<int64_t>({n}, receives), own_values(rank, {100, 4}, DType::f32),
                   rank.template tensor<int64_t>({n}, sends));
  append(bytes, out);
  const Tensor mine = own_values(rank, {7}, DType::bf16), theirs = stream.zeros({7}, DType::bf16);
  const auto send = [&] { group.send(stream, mine, (me + 1) % n); };
  const auto recv = [&] { group.recv(stream, theirs, (me + n - 1) % n); };
  me % 2 == 0 ? (send(), recv()) : (recv(), send());
  append(bytes, theirs);
  group.barrier(stream);
  return bytes;
}

template <class Body>
void expect_bits_of_threads(int ranks, const Body& body) {
  const auto processes = on_processes(ranks, [&](ProcessRank& rank) { return body(rank, *rank.everyone()); });
  expect_whole(processes);
  std::vector<std::string> threads(static_cast<size_t>(ranks));
  on_ranks(ranks, [&](ThreadRank& rank) { threads[static_cast<size_t>(rank.rank)] = body(rank, *rank.everyone()); });
  for (size_t rank = 0; rank < threads.size(); ++rank) {
    EXPECT_FALSE(threads[rank].empty());
    EXPECT_TRUE(processes[rank].said == threads[rank]) << "different bits on rank " << rank;
  }
}

class ProcessBits : public ::testing::TestWithParam<int> {};

TEST_P(ProcessBits, MatchThreadsInEveryCollective) {
  for (const int64_t rows : {0, 1, 5, 1000})
    expect_bits_of_threads(GetParam(), [&](auto& rank, Group& group) { return results(rank, group, rows) + "."; });
}
TEST_P(ProcessBits, MatchThreadsInPieces) {
  expect_bits_of_threads(GetParam(), [](auto& rank, Group& group) {
    std::string bytes;  // several pieces, the last one shorter
    const Tensor all = own_values(rank, {900001}, DType::f32);
    group.all_reduce(rank.stream, all);
    append(bytes, all);
    const Tensor in = own_values(rank, {group.size() * int64_t{300001}}, DType::bf16);
    const Tensor out = rank.stream.zeros({300001}, DType::bf16);
    group.reduce_scatter(rank.stream, out, in);
    append(bytes, out);
    const std::vector<int64_t> begins = thirds(group.size(), 900001);
    const Tensor uneven = own_values(rank, {900001}, DType::f32);
    group.reduce_scatter_uneven(rank.stream, uneven, begins);
    const auto [begin, count] = part_of(begins, group.rank());
    append(bytes, uneven.narrow(0, begin, count));
    return bytes;
  });
}
TEST_P(ProcessBits, MatchThreadsInUnevenExchangesAndPairs) {
  expect_bits_of_threads(GetParam(), [](auto& rank, Group& group) { return uneven_results(rank, group); });
}
// Checksums of messages change no result, between processes or between threads.
TEST_P(ProcessBits, MatchThreadsInCheckedMessages) {
  const auto all = [](auto& rank, Group& group) {
    return results(rank, group, 0) + results(rank, group, 5) + results(rank, group, 1000) + uneven_results(rank, group);
  };
  const auto checked = [&](auto& rank) {
    const auto group = rank.everyone();
    group->check_messages();
    return all(rank, *group);
  };
  const auto processes = on_processes(GetParam(), [&](ProcessRank& rank) { return checked(rank); });
  expect_whole(processes);
  on_ranks(GetParam(), [&](ThreadRank& rank) {
    const std::string plain = all(rank, *rank.everyone());
    EXPECT_TRUE(checked(rank) == plain) << "different bits between threads";
    EXPECT_TRUE(processes[static_cast<size_t>(rank.rank)].said == plain) << "different bits between processes";
  });
}
INSTANTIATE_TEST_SUITE_P(Ranks, ProcessBits, ::testing::Values(2, 3, 4));

}  // namespace
}  // namespace witan
