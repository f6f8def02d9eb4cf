#include "witan/kernels/attention/kv_cache.h"

namespace witan::kernels {

CacheTokens CacheTokens::part(size_t first, size_t count, int64_t token) const {
  const auto begin = runs.begin() + static_cast<std::ptrdiff_t>(first);
  CacheTokens some{{begin, begin + static_cast<std::ptrdiff_t>(count)}, {}, {}};
  int64_t tokens = 0;
  for (const CacheRun& run : some.runs) tokens += run.count;
  some.rows = rows.narrow(0, token, tokens);
  some.positions = positions.narrow(0, token, tokens);
  return some;
}

void append_to_cache(Stream& stream, const Tensor& cache, const Tensor& x, const CacheTokens& tokens) {
  const Cost cost{0, 2 * bytes_of(x) + bytes_of(tokens.rows, tokens.positions)};
  WITAN_LAUNCH(stream, append_to_cache, cost, cache, x, tokens);
}

}  // namespace witan::kernels
