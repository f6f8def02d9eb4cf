// Combines the two gradients of a tied embedding, that of the embedding and that of the head. Where they are separate
// (Layout::separates_head_gradient) they are added at the end of a step, when each is reduced over micro-batches and
// ranks: both on one rank, or on two pipeline stages.
#pragma once

#include "witan/parallel/sharding/grad_bucket.h"

namespace witan::tied_gradients {

// The head's, where both are in the bucket: [sum of elements].
Tensor head_buffer(const GradBucket& bucket);

// Sums both, of the shard that this rank owns; a call of the stages that have one. Nothing happens for a bucket that is
// no tied embedding's, or whose reduction into shards has summed them.
void sum(Stream& stream, const GradBucket& bucket);

}  // namespace witan::tied_gradients
