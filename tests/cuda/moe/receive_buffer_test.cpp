#include "witan/kernels/moe/receive_buffer.h"

#include "support/cuda_rank.h"

namespace witan {
namespace {

using testing::values;
using Integers = std::vector<int64_t>;

class ReceiveBufferOnGpu : public testing::CudaTest {};

TEST_F(ReceiveBufferOnGpu, LimitsAsTheCpuDoes) {
  for (const auto& [R, E, n] :
       std::vector<std::array<int64_t, 3>>{{2, 4, 40}, {8, 128, 5000}, {4, 12, 0}, {64, 512, 3000}})
    for (const int64_t passes : {1, 2, 3}) {
      SCOPED_TRACE(cat(R, " ranks, ", E, " experts, ", n, " assignments, ", passes, " passes"));
      const Philox rng(5, static_cast<uint64_t>(E));
      Integers all(static_cast<size_t>(R * E), 7);
      std::vector<int32_t> ids;
      for (int64_t e = 0; e < E; ++e) all[static_cast<size_t>(E + e)] = 0;  // of rank 1, as its ids say
      for (uint64_t i = 0; i < static_cast<uint64_t>(n); ++i) {
        const auto id = static_cast<int32_t>(rng.below(static_cast<uint64_t>(E + 1), i)) - 1;
        ids.push_back(id);
        if (id >= 0) ++all[static_cast<size_t>(E + id)];
      }
      const Tensor counts = host.tensor<int64_t>({R, E}, all), own = host.tensor<int32_t>({n}, ids);
      for (const auto& [rows, part_rows] :
           std::vector<std::pair<int64_t, int64_t>>{{1000000, 0}, {20, 0}, {1, 0}, {1000000, 100000}, {1000000, 40}})
        for (int64_t pass = 0; pass < passes; ++pass) {
          const kernels::PassBounds part{
              .rows = rows, .rank = 1, .pass = pass, .passes = passes, .part_rows = part_rows};
          const Tensor kept = host.stream.empty({n}, DType::i32), sums = host.stream.empty({E}, DType::i64);
          const Tensor fill = host.tensor<double>({1}, {0.5}), gpu_fill = to_gpu(fill);
          kernels::limit_to_buffer(host.stream, {kept, sums}, fill, own, counts, part);
          const Tensor gpu_kept = poisoned({n}, DType::i32), gpu_sums = poisoned({E}, DType::i64);
          kernels::limit_to_buffer(gpu(), {gpu_kept, gpu_sums}, gpu_fill, to_gpu(own), to_gpu(counts), part);
          EXPECT_EQ(to_host(gpu_kept).to_vector<int32_t>(), kept.to_vector<int32_t>());
          EXPECT_EQ(to_host(gpu_sums).to_vector<int64_t>(), sums.to_vector<int64_t>());
          EXPECT_EQ(values(to_host(gpu_fill)), values(fill));
        }
    }
}

TEST_F(ReceiveBufferOnGpu, LimitsByHostsAsTheCpuDoes) {
  for (const auto& [R, E, H] :
       std::vector<std::array<int64_t, 3>>{{4, 8, 2}, {16, 128, 4}, {16, 32, 16}, {64, 512, 8}}) {
    SCOPED_TRACE(cat(R, " ranks of ", H, " hosts, ", E, " experts"));
    const Philox rng(6, static_cast<uint64_t>(E));
    Integers all;  // rows of each rank for each expert, and its tokens for each host
    for (uint64_t i = 0; i < static_cast<uint64_t>(R * (E + H)); ++i) {
      const bool of_expert = static_cast<int64_t>(i) % (E + H) < E;
      all.push_back(static_cast<int64_t>(rng.below(of_expert ? 9 : 50, i)));
    }
    std::vector<int32_t> ids;
    for (int64_t e = 0; e < E; ++e)
      ids.insert(ids.end(), static_cast<size_t>(all[static_cast<size_t>(E + H + e)]), static_cast<int32_t>(e));
    const auto n = static_cast<int64_t>(ids.size());
    const Tensor counts = host.tensor<int64_t>({R, E + H}, all), own = host.tensor<int32_t>({n}, ids);
    for (const auto& [part_rows, send_rows, most_copies] : std::vector<std::array<int64_t, 3>>{
             {0, 0, 0}, {7, 0, 0}, {100000, 0, 0}, {0, 40, 0}, {0, 100000, 0}, {0, 0, 20}, {0, 0, 50}}) {
      const kernels::PassBounds bounds{.rows = 1000000,
                                       .rank = 1,
                                       .part_rows = part_rows,
                                       .hosts = H,
                                       .send_rows = send_rows,
                                       .copies = most_copies};
      const Tensor kept = host.stream.empty({n}, DType::i32), sums = host.stream.empty({E}, DType::i64);
      const Tensor fill = host.tensor<double>({1}, {0.001}), gpu_fill = to_gpu(fill);
      kernels::limit_to_buffer(host.stream, {kept, sums}, fill, own, counts, bounds);
      const Tensor gpu_kept = poisoned({n}, DType::i32), gpu_sums = poisoned({E}, DType::i64);
      kernels::limit_to_buffer(gpu(), {gpu_kept, gpu_sums}, gpu_fill, to_gpu(own), to_gpu(counts), bounds);
      EXPECT_EQ(to_host(gpu_kept).to_vector<int32_t>(), kept.to_vector<int32_t>());
      EXPECT_EQ(to_host(gpu_sums).to_vector<int64_t>(), sums.to_vector<int64_t>());
      EXPECT_EQ(values(to_host(gpu_fill)), values(fill));
    }
  }
}

TEST_F(ReceiveBufferOnGpu, NumbersRowsAndSkipsAsTheCpuDoes) {
  for (const int64_t n : {0, 1, 5000}) {
    const Tensor index = host.stream.empty({n}, DType::i64), gpu_index = poisoned({n}, DType::i64);
    kernels::number_rows(host.stream, index);
    kernels::number_rows(gpu(), gpu_index);
    EXPECT_EQ(to_host(gpu_index).to_vector<int64_t>(), index.to_vector<int64_t>());
  }
  for (const double found : {0.0, 1.0, 1.25}) {
    const Tensor step = host.stream.zeros({kernels::kStepValues}, DType::f64), gpu_step = to_gpu(step);
    const Tensor fill = host.tensor<double>({1}, {found});
    kernels::skip_overflow(host.stream, step, fill);
    kernels::skip_overflow(gpu(), gpu_step, to_gpu(fill));
    EXPECT_EQ(values(to_host(gpu_step)), values(step));
  }
}

}  // namespace
}  // namespace witan
