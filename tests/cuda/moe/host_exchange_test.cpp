#include "support/cuda_rank.h"
#include "witan/kernels/moe/dispatch.h"

namespace witan {
namespace {

class HostExchangeOnGpu : public testing::CudaTest {};

TEST_F(HostExchangeOnGpu, HostsAndNumbersMatchTheCpu) {
  for (const auto& [T, K, H, experts] : std::vector<std::array<int64_t, 4>>{
           {0, 2, 2, 4}, {1, 1, 2, 1}, {37, 2, 4, 2}, {4097, 8, 8, 16}, {1000, 8, 2, 64}, {333, 7, 100, 3}}) {
    SCOPED_TRACE(cat(T, " tokens of ", K, " experts, ", H, " hosts of ", experts));
    const Philox rng(13, static_cast<uint64_t>(T + K));
    std::vector<int32_t> chosen;
    for (uint64_t i = 0; i < static_cast<uint64_t>(T * K); ++i)
      chosen.push_back(static_cast<int32_t>(rng.below(static_cast<uint64_t>(H * experts + 1), i)) - 1);
    const Tensor ids = host.tensor<int32_t>({T, K}, chosen), gpu_ids = to_gpu(ids);
    const int64_t C = std::min(K, H);
    const Tensor hosts = host.stream.empty({T, C}, DType::i32), gpu_hosts = poisoned({T, C}, DType::i32);
    kernels::choose_hosts(host.stream, hosts, ids, experts);
    kernels::choose_hosts(gpu(), gpu_hosts, gpu_ids, experts);
    EXPECT_EQ(to_host(gpu_hosts).to_vector<int32_t>(), hosts.to_vector<int32_t>());
    // Copies in any order, some of which are missing.
    std::vector<int64_t> from;
    for (int64_t i = 0; i < T * C; ++i) {
      const bool sent = hosts.data<int32_t>()[T * C - 1 - i] >= 0;
      from.push_back(sent && i % 5 != 1 ? T * C - 1 - i : -1);
    }
    from.insert(from.end(), 3, -1);
    const auto N = static_cast<int64_t>(from.size());
    const Tensor source = host.tensor<int64_t>({N}, from);
    const Tensor numbers = host.stream.empty({N, K}, DType::i32), gpu_numbers = poisoned({N, K}, DType::i32);
    kernels::number_on_hosts(host.stream, numbers, ids, hosts, source, experts);
    kernels::number_on_hosts(gpu(), gpu_numbers, gpu_ids, gpu_hosts, to_gpu(source), experts);
    EXPECT_EQ(to_host(gpu_numbers).to_vector<int32_t>(), numbers.to_vector<int32_t>());
  }
}

}  // namespace
}  // namespace witan
