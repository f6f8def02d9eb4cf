// Memory of a run outside the arenas: code, heap, stacks, batches, and pages of mapped files.
#pragma once

#include <cstdint>

#include "witan/train/config/config.h"

namespace witan {

// An upper bound in bytes for the whole process, which runs all ranks, or ranks_per_process. It is linear in
//   GPUs        3 GiB each: CUDA's driver, libraries and kernels
//   processes   64 MiB: the program, its libraries, the tokenizer, and remains of reading and tokenizing text
//   threads     2 MiB each: the stack, the C allocator's heap, what a save exchanges
//   blocks      1 MiB each and per rank: nodes of the tape, records of parameters, a save's records of its tensors
//   vocabulary  1 KiB per entry: the tokenizer's tables
//   tokens      20 bytes for each token of every batch held: four global batches per rank (one in use, three made
//               ahead), and twice the held-out text of one evaluation
// The constants were measured as the peak of the resident set minus the arenas (tests/cli/promise_test.cpp checks the
// bound on real runs). Token shards are mapped in addition: the kernel can take back their pages at any time.
inline int64_t reserve_bytes(const RunConfig& config) {
  constexpr int64_t kMiB = 1 << 20;
  constexpr int64_t kProcess = 64 * kMiB, kThread = 2 * kMiB, kBlock = kMiB, kEntry = 1 << 10;
  constexpr int64_t kToken = 20;  // token, target, position, sequence id, mask: 4 bytes each
  constexpr int64_t kBatches = 4, kLooks = 2;
  constexpr int64_t kDriver = int64_t{3} << 30;  // host memory of CUDA, its libraries and kernels, per GPU
  const auto& parallel = config.parallel;
  const int64_t ranks = parallel.ranks_per_process > 0 ? parallel.ranks_per_process : parallel.ranks;
  const int64_t threads = ranks * (parallel.threads + 2);  // including the loader's and the saver's
  const int64_t tokens = config.train.global_batch_size * config.data.seq_length;
  return kProcess + (parallel.on_gpu() ? kDriver * ranks : 0) + kThread * threads +
         kBlock * config.model.num_layers * ranks + kEntry * config.model.vocab_size +
         kToken * tokens * (kBatches + kLooks * config.train.eval_iters);
}

// An upper bound in bytes for each GPU, outside its arena; 0 on the CPU:
//   640 MiB   the context, the kernels of this program and of the libraries, their handles
//   1 MiB     for each block and micro-batch of a rank: nodes of the recorded step
//   512 MiB   with more than one rank: NCCL's buffers for the three axes, mappings of peers' memory
inline int64_t gpu_reserve_bytes(const RunConfig& config) {
  constexpr int64_t kMiB = 1 << 20;
  constexpr int64_t kContext = 640 * kMiB, kNode = kMiB, kCommunication = 512 * kMiB;
  const auto& parallel = config.parallel;
  if (!parallel.on_gpu()) return 0;
  return kContext + kNode * config.model.num_layers * (config.micro_batches() / parallel.data_ranks()) +
         (parallel.ranks > 1 ? kCommunication : 0);
}

}  // namespace witan
