// Random values for measurements: what switches fewer bits than training does runs faster than any training.
#pragma once

#include <cstdint>

#include "witan/tensor/tensor.h"

namespace witan {

// Fills a contiguous floating tensor with normal values times `scale`: a million of them, drawn by `number`, again and
// again.
void fill_normal(Stream& stream, const Tensor& to, uint64_t number, double scale = 1);

}  // namespace witan
