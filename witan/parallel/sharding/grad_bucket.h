// A gradient bucket: one allocation for gradients that are reduced over the same ranks, at the same time.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "witan/parallel/sharding/shard_plan.h"

namespace witan {

struct GradBucket {
  std::vector<Parameter*> parameters;  // in the order of the buffer
  size_t first_parameter = 0;          // the least index in the model of any of them
  Group* group = nullptr;              // all ranks that find summands of its gradients; of which,
  Group* shard_group = nullptr;        // where several own shards of it, these do, and get the sums of their own alone,
  Group* replicas = nullptr;           // and these own the same shard
  std::vector<int64_t> begins = {};    // [ranks of shard_group + 1]: elements of the buffer
  Group* embedding = nullptr;          // of a tied embedding: the stages that find summands of its gradient
  bool head_apart = false;             // it is the head here too, whose gradient is the second of two sources
  int64_t sources = 1;                 // ranks whose rows its gradients are apart by
  // Undefined where gradients are sharded and none is written:
  Tensor levels = {};       // [levels, sources, sum of elements]: sums of runs of micro-batches; in place: one level
  Tensor buffer = {};       // [sum of elements]: the first of them, which the step ends with
  Tensor shard = {};        // [elements of this rank], where gradients are sharded: what the step ends with
  int chunk = 0;            // of layers, that its parameters belong to
  int64_t micro_batch = 0;  // whose gradients are added now
  size_t waiting = 0;       // parameters that are not ready yet

  int64_t elements() const { return begins.back(); }
  bool sharded() const { return shard.defined(); }
  // This rank's shard in the buffer: first element, elements.
  std::pair<int64_t, int64_t> own_range() const { return part_of(begins, shard_group->rank()); }
};

}  // namespace witan
