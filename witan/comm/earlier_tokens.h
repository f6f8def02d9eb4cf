// The few tokens before each chunk of a sequence that context-parallel ranks divide (comm/context.h), for mixers that
// read no others, such as convolutions. A rank's two chunks follow other ranks' chunks, whose last tokens it is sent.
#pragma once

#include "witan/comm/group.h"

namespace witan {

// part [B, S / n, I] at this rank's positions -> [2 B, count, I]: the `count` tokens before the early and the late
// chunk of each of B sequences, 0 before a sequence's first. Of any dtype. A collective: an all-gather of the last
// `count` tokens of each chunk, or of whole chunks if these are shorter.
Tensor earlier_tokens(Stream& stream, const Tensor& part, int64_t count, Group& context);

// The adjoint: dy [2 B, count, I] -> [2 B, min(count, C), I], the sums for the last tokens of this rank's chunks of C
// tokens, in the order of the chunks that they were sent to. A collective.
Tensor sum_of_earlier_tokens(Stream& stream, const Tensor& dy, int64_t C, Group& context);

}  // namespace witan
