// Keys and values of the positions generated so far, for one attention layer.
#pragma once

#include "witan/tensor/tensor.h"

namespace witan {

struct KvCache {
  Tensor keys, values;  // [B, capacity, G, hd] and, of values, hd_v
  int64_t length = 0;   // positions decoded
  int64_t first = 0;    // position of row 0: above 0 where a window has left earlier ones behind
  int64_t limit = 0;    // most positions that may be decoded
};

}  // namespace witan
