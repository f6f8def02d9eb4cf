#include "witan/parallel/sharding/tied_gradients.h"

#include "witan/kernels/pointwise/elementwise.h"

namespace witan::tied_gradients {

// The second source.
Tensor head_buffer(const GradBucket& bucket) {
  const int64_t total = bucket.buffer.elements();
  return bucket.levels.reshape({bucket.levels.elements()}).narrow(0, total, total);
}

void sum(Stream& stream, const GradBucket& bucket) {
  if (bucket.embedding == nullptr) return;
  const auto [begin, count] = bucket.own_range();
  if (count == 0) return;
  const Tensor own = bucket.sharded() ? bucket.shard : bucket.buffer.narrow(0, begin, count);
  if (!bucket.head_apart)
    bucket.embedding->all_reduce(stream, own);
  else if (!bucket.sharded())
    kernels::add(stream, own, own, head_buffer(bucket).narrow(0, begin, count));
}

}  // namespace witan::tied_gradients
