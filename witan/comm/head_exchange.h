// All-to-all between the two ways in which context-parallel ranks divide sequences of heads: by positions, as
// comm/context.h does, and by heads (Jacobs et al., "DeepSpeed Ulysses", 2023, arXiv:2309.14509).
//
// Both are collectives of one message between any two ranks, whatever the number of tensors, which are of one dtype.
// Where ranks reach each other's memory a kernel stores what it sends where it belongs (PeerMemory::exchange_pieces);
// elsewhere messages are packed and unpacked. Memory for those is taken all the same, so that a plan need not know.
// Bytes sent are those of all_to_all_equal: (n - 1) pieces of each tensor.
#pragma once

#include <vector>

#include "witan/comm/group.h"

namespace witan {

// parts [B, S / n, P, w], all P heads of this rank's positions -> [B, S, Q, w], its heads of all positions, in their
// order: with P a multiple of n the rank-th P / n, and where P divides n the one head that rank P / n is.
std::vector<Tensor> exchange_to_heads(Stream& stream, const std::vector<Tensor>& parts, Group& context);
// The other way: [B, S, Q, w] -> [B, S / n, n Q, w], what all ranks have of this rank's positions, in rank order.
std::vector<Tensor> exchange_to_positions(Stream& stream, const std::vector<Tensor>& wholes, Group& context);

}  // namespace witan
