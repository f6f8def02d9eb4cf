// Memory of a run that no arena holds: code, heap, stacks, batches, and pages of mapped files.
#pragma once

#include <cstdint>

#include "witan/train/run/config.h"

namespace witan {

// A bound in bytes for the whole process, which runs all ranks, or ranks_per_process; linear in what it
// depends on:
//   3 GiB a GPU        CUDA's driver, libraries and kernels
//   64 MiB             the program, its libraries, the tokenizer, and what reading and tokenizing text leave behind
//   2 MiB a thread     stack, the C allocator's heap, what a save exchanges
//   1 MiB a block      and rank: nodes of the tape, parameters' records, what a save tells of its tensors
//   1 KiB an entry     of the vocabulary: the tokenizer's tables
//   20 B a token       of every batch held: each rank's four global batches (one in use, three made ahead), and twice
//                      the held-out text of one look
// The constants were measured as the peak of the resident set minus the arenas (tests/cli/promise_test.cpp checks the
// bound on real runs). Token shards are mapped beside it: their pages are the kernel's, which takes them back.
int64_t reserve_bytes(const RunConfig& config);

// A bound in bytes for each GPU, outside its arena; 0 on the CPU:
//   640 MiB            the context, the kernels of this program and of the libraries, their handles
//   1 MiB a block      and micro-batch of a rank: nodes of the recorded step
//   512 MiB            with more than one rank: NCCL's buffers for the three axes, peers' mappings
int64_t gpu_reserve_bytes(const RunConfig& config);

}  // namespace witan
