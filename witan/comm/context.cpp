#include "witan/comm/context.h"

#include <cassert>

#include "witan/base/error.h"

namespace witan {

kernels::PositionRuns context_positions(int64_t S, int ranks, int rank) {
  assert(ranks >= 1 && rank >= 0 && rank < ranks && S >= 0);
  if (ranks == 1) return {};
  const int64_t chunks = int64_t{2} * ranks, chunk = S / chunks, below = chunk * chunks;
  const std::string nearest = below > 0 ? cat(below, " or ", below + chunks) : cat(chunks);
  require<ConfigError>(below == S, "a sequence of ", S, " tokens does not divide among ", ranks,
                       " ranks of the context axis, which hold two equal chunks each; the nearest length that does is ",
                       nearest);
  return {.first = rank * chunk, .split = chunk, .second = (chunks - 1 - rank) * chunk};
}

}  // namespace witan
