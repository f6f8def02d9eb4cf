// Rows grouped by expert inside a pool of fixed capacity [capacity, D]. Where the groups lie is known to the device
// alone: the host knows the capacity, a bound, so that no step waits for a count. Rows outside the groups are
// undefined.
#pragma once

#include "witan/tensor/tensor.h"

namespace witan {

struct RowGroups {
  Tensor begin;  // [E] int64: first row of each expert's group
  Tensor count;  // [E] int64: rows in each group; groups do not overlap, and begin[e] + count[e] <= capacity

  int64_t experts() const { return count.size(0); }
};

}  // namespace witan
