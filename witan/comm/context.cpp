#include "witan/comm/context.h"

#include <cassert>

#include "witan/base/error.h"
#include "witan/kernels/common/blocks.h"

namespace witan {
namespace {

// x [A, N, I], in which blocks of N change places with A.
Tensor swapped(Stream& stream, const Tensor& x) {
  const Tensor y = stream.empty({x.size(1), x.size(0), x.size(2)}, x.dtype());
  kernels::swap_blocks(stream, y, x);
  return y;
}

}  // namespace

kernels::PositionRuns context_positions(int64_t S, int ranks, int rank) {
  assert(ranks >= 1 && rank >= 0 && rank < ranks && S >= 0);
  if (ranks == 1) return {};
  const int64_t chunks = int64_t{2} * ranks, chunk = S / chunks, below = chunk * chunks;
  const std::string nearest = below > 0 ? cat(below, " or ", below + chunks) : cat(chunks);
  require<ConfigError>(below == S, "a sequence of ", S, " tokens cannot be split into two equal chunks for each of ",
                       ranks, " context-parallel ranks; the nearest length that can is ", nearest);
  return {.first = rank * chunk, .split = chunk, .second = (chunks - 1 - rank) * chunk};
}

// Chunks of all sequences lie together on the way: the c-th [B, S / 2n, I] of them, of 2n.
Tensor gather_positions(Stream& stream, const Tensor& part, Group& context) {
  const int64_t B = part.size(0), S = part.size(1) * context.size(), n = context.size(), elements = part.elements() / 2;
  const Tensor own = swapped(stream, part.reshape({B, 2, elements / B}));
  const Tensor ranks = stream.empty({2 * n, elements}, part.dtype());
  context.all_gather(stream, ranks, own.reshape({2, elements}));
  const Tensor chunks = stream.empty_like(ranks);
  for (int64_t rank = 0; rank < n; ++rank) {
    stream.copy(chunks.narrow(0, rank, 1), ranks.narrow(0, 2 * rank, 1));
    stream.copy(chunks.narrow(0, 2 * n - 1 - rank, 1), ranks.narrow(0, 2 * rank + 1, 1));
  }
  return swapped(stream, chunks.reshape({2 * n, B, elements / B})).reshape({B, S, part.size(2)});
}

Tensor own_positions(Stream& stream, const Tensor& whole, const Group& context) {
  const int64_t B = whole.size(0), S = whole.size(1) / context.size(), n = context.size(), rank = context.rank();
  const int64_t elements = S / 2 * whole.size(2);  // of a chunk
  const Tensor chunks = whole.reshape({B, 2 * n, elements}), both = stream.empty({2, B, elements}, whole.dtype());
  kernels::take_part(stream, both.narrow(0, 0, 1).reshape({B, elements}), chunks, rank);
  kernels::take_part(stream, both.narrow(0, 1, 1).reshape({B, elements}), chunks, 2 * n - 1 - rank);
  return swapped(stream, both).reshape({B, S, whole.size(2)});
}

}  // namespace witan
