#include "witan/kernels/moe/dispatch.h"

#include <functional>
#include <numeric>

#include "support/cuda_rank.h"

namespace witan {
namespace {

using testing::values;
using Integers = std::vector<int64_t>;

class DispatchOnGpu : public testing::CudaTest {
 protected:
  // The ids of T K assignments to E experts, most to the first ones; `dropped` percent are -1.
  Tensor random_ids(int64_t T, int64_t K, int64_t E, uint64_t dropped) {
    const Philox rng(3, static_cast<uint64_t>(T * K + E));
    std::vector<int32_t> ids;
    for (uint64_t i = 0; i < static_cast<uint64_t>(T * K); ++i) {
      const double u = rng.uniform(2 * i);
      ids.push_back(rng.below(100, 2 * i + 1) < dropped ? -1 : static_cast<int32_t>(u * u * static_cast<double>(E)));
    }
    return host.tensor<int32_t>({T, K}, ids);
  }
  Tensor histogram(const Tensor& ids, int64_t E) {
    Integers counts(static_cast<size_t>(E));
    for (const int32_t id : ids.span<int32_t>())
      if (id >= 0) ++counts[static_cast<size_t>(id)];
    return host.tensor<int64_t>({E}, counts);
  }
  Tensor integers(const Integers& of) { return host.tensor<int64_t>({static_cast<int64_t>(of.size())}, of); }
  Integers from_gpu(const Tensor& tensor) { return to_host(tensor).to_vector<int64_t>(); }
};

TEST_F(DispatchOnGpu, SendOrderMatchesTheCpu) {
  for (const auto& [T, K, E] : std::vector<std::array<int64_t, 3>>{{0, 2, 4},
                                                                   {1, 1, 1},
                                                                   {1, 4, 4},
                                                                   {40, 1, 3},
                                                                   {129, 3, 7},
                                                                   {16384, 1, 64},
                                                                   {16385, 8, 64},
                                                                   {5000, 6, 1024},
                                                                   {100000, 10, 256}})
    for (const uint64_t dropped : {0, 30}) {
      SCOPED_TRACE(cat("T=", T, " K=", K, " E=", E, " dropped ", dropped));
      const Tensor ids = random_ids(T, K, E, dropped), counts = histogram(ids, E);
      const Tensor slot = host.stream.empty({T * K}, DType::i64), source = host.stream.empty({T * K + 5}, DType::i64);
      kernels::send_order(host.stream, slot, source, ids, counts);
      const Tensor gpu_slot = poisoned(slot.shape(), DType::i64), gpu_source = gpu().zeros(source.shape(), DType::i64);
      kernels::send_order(gpu(), gpu_slot, gpu_source, to_gpu(ids), to_gpu(counts));
      EXPECT_EQ(from_gpu(gpu_slot), slot.to_vector<int64_t>());
      EXPECT_EQ(from_gpu(gpu_source), source.to_vector<int64_t>());
      for (const DType dtype : {DType::f32, DType::f64}) {
        const Tensor weights = host.normal({T, K}, dtype, "weights");
        const auto make = [&](const auto& unset) {
          return kernels::LocalOrder{unset(slot.shape(), DType::i64), unset(source.shape(), DType::i64),
                                     RowGroups{unset(Shape{E}, DType::i64), unset(Shape{E}, DType::i64)},
                                     unset(Shape{source.elements(), 1}, dtype)};
        };
        const auto expected = make([&](const Shape& shape, DType of) { return host.stream.empty(shape, of); });
        const auto order = make([&](const Shape& shape, DType of) { return poisoned(shape, of); });
        kernels::local_order(host.stream, expected, ids, counts, weights);
        kernels::local_order(gpu(), order, to_gpu(ids), to_gpu(counts), to_gpu(weights));
        EXPECT_EQ(from_gpu(order.slot), slot.to_vector<int64_t>());
        EXPECT_EQ(from_gpu(order.source), source.to_vector<int64_t>());
        EXPECT_EQ(from_gpu(order.groups.begin), expected.groups.begin.to_vector<int64_t>());
        EXPECT_EQ(from_gpu(order.groups.count), expected.groups.count.to_vector<int64_t>());
        EXPECT_EQ(testing::values(to_host(order.row_weights)), testing::values(expected.row_weights));
      }
    }
}

TEST_F(DispatchOnGpu, GatheredTokensAreSortedAsOnTheCpu) {
  for (const auto& [T, K, R, local] : std::vector<std::array<int64_t, 4>>{
           {0, 2, 2, 4}, {1, 1, 1, 1}, {40, 1, 3, 1}, {129, 3, 2, 7}, {5000, 6, 8, 64}}) {
    SCOPED_TRACE(cat("T=", T, " K=", K, " of ", R, " ranks with ", local, " experts"));
    const Tensor ids = random_ids(T, K, R * local, 20), own = host.stream.empty_like(ids),
                 own_gpu = gpu().empty({T, K}, DType::i32);
    kernels::local_choices(host.stream, own, ids, (R - 1) * local, local);
    kernels::local_choices(gpu(), own_gpu, to_gpu(ids), (R - 1) * local, local);
    EXPECT_EQ(to_host(own_gpu).to_vector<int32_t>(), own.to_vector<int32_t>());

    Integers rows;
    for (int64_t i = 0; i < R * local; ++i) rows.push_back(i * i % 11);
    const Tensor received = host.tensor<int64_t>({R, local}, rows);
    const auto make = [&](Stream& stream) {
      const auto of = [&](const Shape& shape) { return stream.empty(shape, DType::i64); };
      return RowGroups{of({local}), of({local}), of({R, local}), of({R, local})};
    };
    const RowGroups groups = make(host.stream), groups_gpu = make(gpu());
    kernels::gathered_groups(host.stream, groups, received);
    kernels::gathered_groups(gpu(), groups_gpu, to_gpu(received));
    for (const auto field : {&RowGroups::begin, &RowGroups::count, &RowGroups::source_begin, &RowGroups::source_count})
      EXPECT_EQ(from_gpu(groups_gpu.*field), (groups.*field).to_vector<int64_t>());
  }
}

TEST_F(DispatchOnGpu, RankCountsMatchTheCpu) {
  for (const int64_t E : {1, 6, 64, 96, 1000}) {
    Integers some;
    for (int64_t e = 0; e < E; ++e) some.push_back(e * 7919 % 13 * (e % 3));
    const Tensor counts = integers(some);
    for (const int64_t R : {int64_t{1}, E % 2 == 0 ? int64_t{2} : int64_t{1}, E}) {
      const Tensor to = host.stream.empty({R}, DType::i64), gpu_to = poisoned({R}, DType::i64);
      kernels::rank_counts(host.stream, to, counts);
      kernels::rank_counts(gpu(), gpu_to, to_gpu(counts));
      EXPECT_EQ(from_gpu(gpu_to), to.to_vector<int64_t>());
    }
  }
}

TEST_F(DispatchOnGpu, ReceiveOrderMatchesTheCpu) {
  for (const auto& [R, E, most] : std::vector<std::array<int64_t, 3>>{
           {1, 1, 9}, {2, 3, 5}, {4, 2, 3}, {8, 8, 200}, {4, 16, 1500}, {8, 128, 20}, {3, 5, 1}}) {
    const Philox rng(9, static_cast<uint64_t>(R * E));
    Integers rows;
    for (int64_t i = 0; i < R * E; ++i)
      rows.push_back(static_cast<int64_t>(rng.below(static_cast<uint64_t>(most), static_cast<uint64_t>(i))));
    const Tensor received = host.tensor<int64_t>({R, E}, rows);
    const int64_t total = std::accumulate(rows.begin(), rows.end(), int64_t{0});
    const auto run = [&](Stream& stream, const Tensor& arrivals) {
      const auto make = [&](const Shape& shape) { return stream.zeros(shape, DType::i64); };
      const RowGroups groups{make({E}), make({E}), make({R, E}), make({R, E})};
      const Tensor recv_counts = make({R}), place = make({total + 3});
      kernels::receive_order(stream, groups, recv_counts, place, arrivals);
      return std::vector{groups.begin,        groups.count, groups.source_begin,
                         groups.source_count, recv_counts,  place.narrow(0, 0, total)};
    };
    const auto expected = run(host.stream, received), out = run(gpu(), to_gpu(received));
    for (size_t i = 0; i < out.size(); ++i)
      EXPECT_EQ(from_gpu(out[i]), expected[i].to_vector<int64_t>()) << R << " ranks, output " << i;
  }
}

TEST_F(DispatchOnGpu, CountsOfAssignmentsAreHistograms) {
  for (const auto& [T, K, E] : std::vector<std::array<int64_t, 3>>{
           {0, 2, 4}, {1, 1, 1}, {129, 3, 7}, {16385, 8, 64}, {5000, 6, 1024}, {100000, 10, 256}})
    for (const uint64_t dropped : {0, 30, 100}) {
      const Tensor ids = random_ids(T, K, E, dropped), counts = poisoned({E}, DType::i64);
      kernels::count_assignments(gpu(), counts, to_gpu(ids));
      EXPECT_EQ(from_gpu(counts), histogram(ids, E).to_vector<int64_t>()) << T << " " << E << " dropped " << dropped;
    }
}

TEST_F(DispatchOnGpu, CountsOfEqualRunsMatchTheCpu) {
  for (const auto& [B, S, K, E] :
       std::vector<std::array<int64_t, 4>>{{3, 0, 2, 4}, {5, 1, 1, 1}, {2, 4097, 8, 64}, {70, 33, 3, 1024}}) {
    const Tensor ids = random_ids(B * S, K, E, 30), counts = poisoned({B, E}, DType::i64),
                 expected = host.stream.empty({B, E}, DType::i64);
    kernels::count_assignments(gpu(), counts, to_gpu(ids));
    kernels::count_assignments(host.stream, expected, ids);
    EXPECT_EQ(from_gpu(counts), expected.to_vector<int64_t>()) << B << " runs of " << S;
  }
}

// Groups of random sizes in each receive buffer, some of them empty, with gaps between them.
TEST_F(DispatchOnGpu, MergedBuffersMatchTheCpu) {
  for (const auto& [R, E, most] : std::vector<std::array<int64_t, 3>>{
           {1, 1, 9}, {2, 3, 5}, {4, 2, 3}, {8, 8, 200}, {2, 16, 1500}, {4, 128, 20}, {3, 5, 1}}) {
    const Philox rng(11, static_cast<uint64_t>(R * E));
    const auto below = [&](int64_t bound, int64_t i) {
      return static_cast<int64_t>(rng.below(static_cast<uint64_t>(bound), static_cast<uint64_t>(i)));
    };
    Integers pools;
    int64_t capacity = 0, total = 0;
    for (int64_t r = 0; r < R; ++r) {
      Integers begins, counts;
      int64_t at = 0;
      for (int64_t e = 0; e < E; ++e) {
        begins.push_back(at += below(3, 2 * (r * E + e)));
        counts.push_back(below(most, 2 * (r * E + e) + 1));
        at += counts.back();
        total += counts.back();
      }
      pools.insert(pools.end(), begins.begin(), begins.end());
      pools.insert(pools.end(), counts.begin(), counts.end());
      capacity = std::max(capacity, at + 2);
    }
    const Tensor all = host.tensor<int64_t>({R, 2, E}, pools);
    const auto run = [&](Stream& stream, const Tensor& from) {
      const auto make = [&](const Shape& shape) { return stream.zeros(shape, DType::i64); };
      const RowGroups groups{make({E}), make({E})};
      const Tensor place = make({R * capacity});
      kernels::merge_order(stream, groups, place, from, capacity);
      return std::vector{groups.begin, groups.count, place.narrow(0, 0, total)};
    };
    const auto expected = run(host.stream, all), out = run(gpu(), to_gpu(all));
    for (size_t i = 0; i < out.size(); ++i)
      EXPECT_EQ(from_gpu(out[i]), expected[i].to_vector<int64_t>()) << R << " buffers, output " << i;
  }
}

TEST_F(DispatchOnGpu, MovedRowsMatchTheCpu) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const int64_t D : {1, 3, 8, 512, 1800, 2053})
      for (const int64_t divisor : {1, 3}) {
        SCOPED_TRACE(cat(dtype, " D=", D, " divisor ", divisor));
        const int64_t N = 1009, M = 700;
        const Philox rng(4, 4);
        Integers some;
        for (uint64_t i = 0; i < N; ++i)
          some.push_back(i % 11 == 5 ? -1 : static_cast<int64_t>(rng.below(uint64_t(M * divisor), i)));
        const Tensor index = integers(some), x = host.normal({M, D}, dtype, "x"), y = host.poisoned({N, D}, dtype);
        kernels::gather_rows(host.stream, y, x, index, divisor);
        const Tensor out = poisoned({N, D}, dtype);
        kernels::gather_rows(gpu(), out, to_gpu(x), to_gpu(index), divisor);
        EXPECT_EQ(values(to_host(out)), values(y));
      }
}

TEST_F(DispatchOnGpu, FirstRowsMoveAndOthersStay) {
  const auto is_nan = [](double value) { return std::isnan(value); };
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const int64_t D : {3, 512})
      for (const Integers& some : {Integers{200, 0, 123}, Integers{500}, Integers{0, 0}, Integers(400, 1)}) {
        const int64_t N = 500, first = std::accumulate(some.begin(), some.end(), int64_t{0});
        const Tensor x = to_gpu(host.normal({N, D}, dtype, "x")), counts = to_gpu(integers(some));
        Integers backwards;
        for (int64_t i = 0; i < N; ++i) backwards.push_back(N - 1 - i);
        const Tensor index = to_gpu(integers(backwards));
        const Tensor scattered = poisoned({N, D}, dtype), gathered = poisoned({N, D}, dtype);
        kernels::scatter_first_rows(gpu(), scattered, x, index, counts);
        kernels::gather_first_rows(gpu(), gathered, scattered, index, counts);
        const Tensor back = to_host(gathered), on_host = to_host(x);
        EXPECT_EQ(values(back.narrow(0, 0, first)), values(on_host.narrow(0, 0, first)));
        EXPECT_TRUE(std::ranges::all_of(values(back.narrow(0, first, N - first)), is_nan));
        EXPECT_TRUE(std::ranges::all_of(values(to_host(scattered).narrow(0, 0, N - first)), is_nan));
      }
}

// Sums of the same numbers in the same order have the same bits.
TEST_F(DispatchOnGpu, SumsOfAssignmentsHaveTheCpusBits) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const auto& [T, K, D] : std::vector<std::array<int64_t, 3>>{
             {300, 3, 137}, {129, 1, 512}, {1000, 8, 2048}, {77, 5, 264}, {3, 9, 8}, {5, 2, 1}}) {
      SCOPED_TRACE(cat(dtype, " T=", T, " K=", K, " D=", D));
      const Tensor x = host.normal({T * K, D}, dtype, "x"), y = host.poisoned({T, D}, dtype);
      Integers slots;
      for (int64_t i = 0; i < T * K; ++i) slots.push_back(i % 7 == 3 ? -1 : T * K - 1 - i);
      const Tensor slot = integers(slots), out = poisoned({T, D}, dtype);
      kernels::sum_assignments(host.stream, y, x, slot);
      kernels::sum_assignments(gpu(), out, to_gpu(x), to_gpu(slot));
      EXPECT_EQ(values(to_host(out)), values(y));
    }
}

TEST_F(DispatchOnGpu, AcceptsNoTokens) {
  const Tensor nothing = gpu().empty({0}, DType::i64), rows = gpu().empty({0, 4}, DType::f32);
  kernels::send_order(gpu(), nothing, nothing, gpu().empty({0, 2}, DType::i32), to_gpu(integers({0, 0})));
  kernels::gather_rows(gpu(), rows, rows, nothing, 2);
  kernels::gather_first_rows(gpu(), rows, rows, nothing, to_gpu(integers({0})));
  kernels::scatter_first_rows(gpu(), rows, rows, nothing, to_gpu(integers({0})));
  kernels::sum_assignments(gpu(), rows, rows, nothing);
  gpu().wait();
}

}  // namespace
}  // namespace witan
