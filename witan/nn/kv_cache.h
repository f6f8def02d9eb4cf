// Keys and values of the positions generated so far, for one attention layer.
#pragma once

#include "witan/tensor/tensor.h"

namespace witan {

struct KvCache {
  Tensor keys, values;  // [B, most positions, G, head dim]
  int64_t length = 0;   // positions filled
};

}  // namespace witan
