#include "witan/kernels/moe/bounded_exchange.h"

namespace witan::kernels {

void spread_to_parts(Stream& stream, const Tensor& slot, const Tensor& parts, const Tensor& source,
                     const Tensor& counts) {
  WITAN_LAUNCH(stream, spread_to_parts, (Cost{0, bytes_of(slot, parts, source, counts)}), slot, parts, source, counts);
}

void find_in_parts(Stream& stream, const Tensor& arrival, const RowGroups& groups, int64_t part_rows) {
  WITAN_LAUNCH(stream, find_in_parts, (Cost{0, bytes_of(arrival, groups.source_begin, groups.source_count)}), arrival,
               groups, part_rows);
}

}  // namespace witan::kernels
