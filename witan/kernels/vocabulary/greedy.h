// The likeliest token of each row of logits, chosen where the logits are: what a host would read is 4 bytes a row
// instead of the whole row.
#pragma once

#include "witan/kernels/common/launch.h"

namespace witan::kernels {

// ids[t] = the v < words with the largest logits[t,v], the lower of equal ones; -1 where one of these logits is NaN or
// +infinity, or none is finite.  ids [T] int32, logits [T, V] floating and contiguous, 1 <= words <= V. Logits are
// compared as float32, in which samplers read them (generate/sampler.h).
void likeliest_tokens(Stream& stream, const Tensor& ids, const Tensor& logits, int64_t words);
WITAN_KERNEL_TWINS(likeliest_tokens)

}  // namespace witan::kernels
