#include "witan/planner/reserve.h"

namespace witan {

int64_t reserve_bytes(const RunConfig& config) {
  constexpr int64_t kMiB = 1 << 20;
  constexpr int64_t kProcess = 64 * kMiB, kThread = 2 * kMiB, kBlock = kMiB, kEntry = 1 << 10;
  constexpr int64_t kToken = 20;  // token, target, position, sequence id, mask
  constexpr int64_t kBatches = 4, kLooks = 2;
  const auto& parallel = config.parallel;
  const int64_t threads = parallel.ranks * (parallel.threads + 2);  // the loader's and the saver's too
  const int64_t tokens = config.train.global_batch_size * config.data.seq_length;
  return kProcess + kThread * threads + kBlock * config.model.num_layers * parallel.ranks +
         kEntry * config.model.vocab_size + kToken * tokens * (kBatches + kLooks * config.train.eval_iters);
}

}  // namespace witan
