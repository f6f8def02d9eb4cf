// Weights of attention's projections where ranks of the tensor axis share groups of heads: grouped-query attention over
// more ranks than it has groups (Ainslie et al., 2023, arXiv:2305.13245). Each rank has a part of the weights of keys
// and values, and computes with those of its group, whole, since all of them are smaller than the keys of its tokens.
#pragma once

#include "witan/autograd/tape.h"
#include "witan/comm/group.h"

namespace witan::ops {

struct SharedProjections {
  Var q, k, v;     // [Hq, D] of this rank's heads; [G hd / n, D] and [G hd_v / n, D]: the n-th part of all G groups'
  int64_t groups;  // G, which divides n
};

// [Hq + hd + hd_v, D]: the rows of q, and those of keys and values of this rank's group, which is the (rank G / n)-th.
// Its gradient, in the accumulator dtype, goes to q as it is; those of keys and values are summed over the ranks of
// their group. Collectives, forward and backward; the group must outlive the tape. Throws ShapeError.
Var gather_group_weights(Tape& tape, const SharedProjections& parts, Group& group);

}  // namespace witan::ops
