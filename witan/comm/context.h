// Divides sequences between context-parallel ranks, by positions and by heads.
//
// A causal query sees all keys before it, so that equal consecutive parts would leave most of the work to the last
// rank. The sequence is split into twice as many chunks as there are ranks, and rank r holds chunks r and 2n - 1 - r,
// an early one and a late one: every rank forms as many query-key pairs as every other, with itself and with each of
// them. This is how Megatron-LM and Llama 3 (2024, arXiv:2407.21783) shard sequences.
#pragma once

#include <vector>

#include "witan/comm/group.h"
#include "witan/kernels/attention/attention.h"

namespace witan {

// The positions of the S / ranks tokens that `rank` holds, in the order in which it holds them, which rises. Throws
// ConfigError, naming the nearest lengths that work, unless 2 ranks divide S; one rank holds any sequence.
kernels::PositionRuns context_positions(int64_t S, int ranks, int rank);

// part [B, S / n, I], at this rank's positions of B sequences -> [B, S, I], whole and in their order, on all n ranks. A
// collective.
Tensor gather_positions(Stream& stream, const Tensor& part, Group& context);
// The inverse: this rank's [B, S / n, I] of whole [B, S, I].
Tensor own_positions(Stream& stream, const Tensor& whole, const Group& context);

// All-to-all between the two ways in which context-parallel ranks divide heads: by positions, and by heads (Jacobs et
// al., "DeepSpeed Ulysses", 2023, arXiv:2309.14509).
//
// Both functions are collectives with one message between any two ranks, whatever the number of tensors, which have one
// dtype. If ranks reach each other's memory, a kernel stores pieces at their destination (PeerMemory::exchange_pieces);
// otherwise messages are packed and unpacked. Memory for messages is reserved in both cases, so that the plan does not
// depend on it. Bytes sent are those of all_to_all_equal: (n - 1) pieces of each tensor.
//
// parts [B, S / n, P, w], all P heads of this rank's positions -> [B, S, Q, w], its heads of all positions, in their
// order. If P is a multiple of n, these are the rank-th P / n heads; if P divides n, it is the one head rank P / n.
std::vector<Tensor> exchange_to_heads(Stream& stream, const std::vector<Tensor>& parts, Group& context);
// The other way: [B, S, Q, w] -> [B, S / n, n Q, w], what all ranks have of this rank's positions, in rank order.
std::vector<Tensor> exchange_to_positions(Stream& stream, const std::vector<Tensor>& wholes, Group& context);

// Heads of one kind among others that lie side by side in a tensor, such as queries, keys and values.
struct HeadSection {
  int64_t heads = 0, width = 0;  // P of all ranks, w

  int64_t channels() const { return heads * width; }
  // Q of this many ranks' heads on one of them.
  int64_t own_heads(int64_t ranks) const { return heads > ranks ? heads / ranks : 1; }
};
using HeadSections = std::vector<HeadSection>;

// The same exchanges of one tensor with up to three sections: part [B, S / n, sum of P w] -> [B, S, sum of Q w], and
// the other way to [B, S / n, sum of n Q w].
Tensor exchange_to_heads(Stream& stream, const Tensor& part, const HeadSections& sections, Group& context);
Tensor exchange_to_positions(Stream& stream, const Tensor& whole, const HeadSections& sections, Group& context);

}  // namespace witan
