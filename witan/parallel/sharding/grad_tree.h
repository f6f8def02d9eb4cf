// Sums in a binary tree over the index of micro-batches in the global batch: the first largest power of two of them,
// plus the rest. A rank's micro-batches are a run of 2^k, and so are those of the ranks that share a set of experts;
// ranks are summed in the same tree (comm/reduce.h). Then every layout forms the same sums, to the bit.
//
// Sums of complete runs lie in levels, like a binary counter's digits: micro-batch i goes on top of a sum for each bit
// of i that is set.
#pragma once

#include <cstdint>

#include "witan/tensor/tensor.h"

namespace witan::grad_tree {

// Where the gradients of micro-batch `index` of a rank are written.
int64_t level_of(int64_t index);
// Levels that a rank's micro-batches need.
int64_t level_count(int64_t micro_batches);

// levels [L, ..]: adds the level that micro-batch `index` of `micro_batches` wrote to the one below, and that to the
// next, as far as both are sums of equally many micro-batches. After the last one, all that are left: the sum is in the
// first. The meta device, which may leave micro-batches out, counts the additions after all but the last at the first.
void sum_levels(Stream& stream, const Tensor& levels, int64_t index, int64_t micro_batches);

// sources [S, n]: the tree over ranks, into the first: neighbours, then neighbours' neighbours.
void sum_sources(Stream& stream, const Tensor& sources);

}  // namespace witan::grad_tree
