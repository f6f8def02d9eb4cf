// The two gradients of an embedding that is the head too. Where they are apart (Layout::sums_heads_apart) they meet at
// the end of a step, when each is a sum over micro-batches and ranks: both on one rank, or on two stages of a pipeline.
#pragma once

#include "witan/parallel/sharding/grad_bucket.h"

namespace witan::tied_gradients {

// The head's, where both are in the bucket: [sum of elements].
Tensor head_buffer(const GradBucket& bucket);

// Sums both, of the shard that this rank owns; a call of the stages that have one. Nothing happens for a bucket that is
// no tied embedding's, or whose reduction into shards has summed them.
void sum(Stream& stream, const GradBucket& bucket);

}  // namespace witan::tied_gradients
