#include "support/cuda_rank.h"
#include "witan/kernels/moe/dispatch.h"

namespace witan {
namespace {

using Integers = std::vector<int64_t>;

class BoundedExchangeOnGpu : public testing::CudaTest {};

// The ids of n assignments to E experts; a quarter is dropped, and some experts have none.
std::vector<int32_t> some_ids(int64_t n, int64_t E) {
  const Philox rng(11, static_cast<uint64_t>(E));
  std::vector<int32_t> ids;
  for (uint64_t i = 0; i < static_cast<uint64_t>(n); ++i) {
    const auto id = static_cast<int32_t>(rng.below(static_cast<uint64_t>(E), i));
    ids.push_back(id % 4 == 3 ? -1 : id);
  }
  return ids;
}

TEST_F(BoundedExchangeOnGpu, PartsMatchTheCpu) {
  for (const auto& [R, E, n, spare] : std::vector<std::array<int64_t, 4>>{
           {2, 4, 40, 0}, {2, 4, 40, 3}, {8, 128, 5001, 17}, {64, 512, 3000, 1}, {3, 6, 0, 1}, {40, 40, 999, 700}}) {
    SCOPED_TRACE(cat(R, " ranks, ", E, " experts, ", n, " assignments"));
    const std::vector<int32_t> ids = some_ids(n, E);
    Integers kept(static_cast<size_t>(E)), counts(static_cast<size_t>(R));
    for (const int32_t id : ids)
      if (id >= 0) {
        ++kept[static_cast<size_t>(id)];
        ++counts[static_cast<size_t>(id / (E / R))];
      }
    const int64_t part_rows = std::ranges::max(counts) + spare;
    const Tensor slot = host.stream.empty({n}, DType::i64), source = host.stream.empty({n}, DType::i64);
    kernels::send_order(host.stream, slot, source, host.tensor<int32_t>({n, 1}, ids), host.tensor<int64_t>({E}, kept));
    const Tensor sends = host.tensor<int64_t>({R}, counts), gpu_slot = to_gpu(slot);
    const Tensor parts = host.stream.empty({R * part_rows}, DType::i64),
                 gpu_parts = poisoned(parts.shape(), DType::i64);
    kernels::spread_to_parts(host.stream, slot, parts, source, sends);
    kernels::spread_to_parts(gpu(), gpu_slot, gpu_parts, to_gpu(source), to_gpu(sends));
    EXPECT_EQ(to_host(gpu_slot).to_vector<int64_t>(), slot.to_vector<int64_t>());
    EXPECT_EQ(to_host(gpu_parts).to_vector<int64_t>(), parts.to_vector<int64_t>());
  }
}

TEST_F(BoundedExchangeOnGpu, ArrivalsMatchTheCpu) {
  for (const auto& [R, E, most] :
       std::vector<std::array<int64_t, 3>>{{2, 2, 9}, {8, 16, 700}, {64, 8, 40}, {3, 1, 0}, {2, 100, 5}}) {
    SCOPED_TRACE(cat(R, " ranks, ", E, " experts here, ", most, " rows of each at most"));
    const Philox rng(3, static_cast<uint64_t>(R * E));
    Integers received;
    int64_t rows = 0, part_rows = 0;
    for (int64_t r = 0; r < R; ++r) {
      int64_t of_rank = 0;
      for (int64_t e = 0; e < E; ++e) {
        const auto i = static_cast<uint64_t>(r * E + e);
        received.push_back(i % 5 == 2 ? 0 : static_cast<int64_t>(rng.below(static_cast<uint64_t>(most + 1), i)));
        of_rank += received.back();
      }
      rows += of_rank;
      part_rows = std::max(part_rows, of_rank);
    }
    const auto integers = [&](const Shape& shape) { return host.stream.empty(shape, DType::i64); };
    const RowGroups groups{integers({E}), integers({E}), integers({R, E}), integers({R, E})};
    kernels::gathered_groups(host.stream, groups, host.tensor<int64_t>({R, E}, received));
    const RowGroups on_gpu{to_gpu(groups.begin), to_gpu(groups.count), to_gpu(groups.source_begin),
                           to_gpu(groups.source_count)};
    // Rows beyond the groups must not change.
    const Tensor arrival = host.tensor<int64_t>({rows + 3}, Integers(static_cast<size_t>(rows + 3), -1));
    const Tensor gpu_arrival = poisoned({rows + 3}, DType::i64);
    kernels::find_in_parts(host.stream, arrival, groups, part_rows + 2);
    kernels::find_in_parts(gpu(), gpu_arrival, on_gpu, part_rows + 2);
    EXPECT_EQ(to_host(gpu_arrival).to_vector<int64_t>(), arrival.to_vector<int64_t>());
  }
}

}  // namespace
}  // namespace witan
