// What attention kernels are charged by.
#pragma once

#include "witan/kernels/attention/attention.h"

namespace witan::kernels {

// Query-key pairs of all rows and heads that positions and window leave visible. Documents make it fewer, which no
// shape tells.
double visible_pairs(const AttentionInputs& in);

}  // namespace witan::kernels
