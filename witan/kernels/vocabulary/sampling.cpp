#include "witan/kernels/vocabulary/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace witan::kernels {

SamplingRow sampling_row(const SamplingFilters& filters, int64_t words, uint32_t draw) {
  SamplingRow row{.words = static_cast<int32_t>(words), .draw = draw};
  if (filters.temperature == 0) return row;
  row.choice = filters.top_k > 0 || filters.top_p < 1 ? Choice::by_rank : Choice::by_id;
  // A temperature that is lower still leaves only the likeliest tokens, as this one does.
  const double octaves = std::min(std::numbers::log2e / filters.temperature, 0x1p100);
  row.octaves = static_cast<float>(octaves);
  row.octaves_low = static_cast<float>(octaves - static_cast<double>(row.octaves));
  row.top_k = static_cast<int32_t>(std::min<int64_t>(filters.top_k, std::numeric_limits<int32_t>::max()));
  row.top_p = filters.top_p;
  row.least_weight = static_cast<uint64_t>(std::ceil(filters.min_p * static_cast<double>(kTopWeight)));
  return row;
}

}  // namespace witan::kernels
