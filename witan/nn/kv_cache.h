// Keys and values of the positions generated so far, for one attention layer.
#pragma once

#include "witan/tensor/tensor.h"

namespace witan {

struct KvCache {
  Tensor keys, values;  // [B, most positions, G, hd] and, of values, hd_v
  int64_t length = 0;   // positions filled
};

}  // namespace witan
