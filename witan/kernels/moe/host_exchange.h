// Which hosts the tokens of a rank visit, where experts are divided over hosts: each has E / H consecutive ones. A copy
// of a token goes to each host that has any of its experts, with their numbers there (moe/host_dispatch.h).
#pragma once

#include "witan/kernels/common/launch.h"

namespace witan::kernels {

// ids [T, K] int32 in [0, E), or -1 -> hosts [T, C] int32: those that have a token's experts, `experts` each, every one
// once and in their order; then -1.  C = min(K, H) is enough for all.
void choose_hosts(Stream& stream, const Tensor& hosts, const Tensor& ids, int64_t experts);
WITAN_KERNEL_TWINS(choose_hosts)

// What is sent with copies of tokens: numbers [N, K] int32, of which a token's expert on the copy's host becomes 1 and
// more, counted from the host's first; 0: it is elsewhere.  ids [T, K] and hosts [T, C] as of choose_hosts; source [N]
// int64: the element of hosts that each copy is for, or -1: there is no copy, and all its numbers are 0.
void number_on_hosts(Stream& stream, const Tensor& numbers, const Tensor& ids, const Tensor& hosts,
                     const Tensor& source, int64_t experts);
WITAN_KERNEL_TWINS(number_on_hosts)

}  // namespace witan::kernels
