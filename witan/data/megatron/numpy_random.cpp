#include "witan/data/megatron/numpy_random.h"

#include <bit>

namespace witan::megatron {

uint64_t NumpyRandom::interval(uint64_t most) {
  if (most == 0) return 0;
  const uint64_t mask = ~uint64_t{0} >> std::countl_zero(most);
  uint64_t value = 0;
  do {
    value = engine_();
    if (most > UINT32_MAX) value = value << 32 | engine_();
    value &= mask;
  } while (value > most);
  return value;
}

}  // namespace witan::megatron
