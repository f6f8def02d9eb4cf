#include "witan/planner/memory/reserve.h"

namespace witan {

int64_t reserve_bytes(const RunConfig& config) {
  constexpr int64_t kMiB = 1 << 20;
  constexpr int64_t kProcess = 64 * kMiB, kThread = 2 * kMiB, kBlock = kMiB, kEntry = 1 << 10;
  constexpr int64_t kToken = 20;  // token, target, position, sequence id, mask
  constexpr int64_t kBatches = 4, kLooks = 2;
  constexpr int64_t kDriver = int64_t{3} << 30;  // what CUDA, its libraries and kernels take of the host, for each GPU
  const auto& parallel = config.parallel;
  const int64_t ranks = parallel.ranks_per_process > 0 ? parallel.ranks_per_process : parallel.ranks;
  const int64_t threads = ranks * (parallel.threads + 2);  // the loader's and the saver's too
  const int64_t tokens = config.train.global_batch_size * config.data.seq_length;
  return kProcess + (parallel.on_gpu() ? kDriver * ranks : 0) + kThread * threads +
         kBlock * config.model.num_layers * ranks + kEntry * config.model.vocab_size +
         kToken * tokens * (kBatches + kLooks * config.train.eval_iters);
}

int64_t gpu_reserve_bytes(const RunConfig& config) {
  constexpr int64_t kMiB = 1 << 20;
  constexpr int64_t kContext = 640 * kMiB, kNode = kMiB, kCommunication = 512 * kMiB;
  const auto& parallel = config.parallel;
  if (!parallel.on_gpu()) return 0;
  return kContext + kNode * config.model.num_layers * (config.micro_batches() / parallel.data_ranks()) +
         (parallel.ranks > 1 ? kCommunication : 0);
}

}  // namespace witan
