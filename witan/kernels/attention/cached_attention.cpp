#include "witan/kernels/attention/cached_attention.h"

#include <algorithm>

namespace witan::kernels {

void cached_attention(Stream& stream, const Tensor& y, const Tensor& lse, const CachedInputs& in) {
  double keys = 0;  // of all tokens
  for (const CacheRun& run : in.tokens.runs)
    for (int64_t position = run.past; position < run.past + run.count; ++position)
      keys += static_cast<double>(in.window > 0 ? std::min(position + 1, in.window) : position + 1);
  const auto channels = static_cast<double>(in.q.size(3) + in.values.size(3));
  const double read =
      keys * static_cast<double>(in.keys.size(2)) * channels * static_cast<double>(size_of(in.q.dtype()));
  const Cost cost{2 * keys * static_cast<double>(in.q.size(2)) * channels, bytes_of(y, lse, in.q) + read};
  WITAN_LAUNCH(stream, cached_attention, cost, y, lse, in);
}

}  // namespace witan::kernels
