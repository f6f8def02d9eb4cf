// Random values for measurements: data with fewer bit flips than in training would run faster than training.
#pragma once

#include <cstdint>

#include "witan/tensor/tensor.h"

namespace witan {

// Fills a contiguous floating tensor with normal values times `scale`: a million values, drawn with `number` as the
// seed and repeated.
void fill_normal(Stream& stream, const Tensor& to, uint64_t number, double scale = 1);

}  // namespace witan
