// Dispatch by hosts, for experts that are divided over ranks of several hosts: a token crosses the network once for
// each host, as in DeepEP's internode kernels and in HybridEP.
//
// A token is copied to each host that has any of its experts, with the numbers and weights of these experts: to the
// rank with the same index there as the token's rank has on its own host. That rank dispatches the received tokens like
// its own among the ranks of its host. Each token's rows are summed within the host, the sum travels back to the
// token's rank, and there the sums of hosts are added in the order of hosts. Gradients of tokens and weights take the
// same paths.
//
// Copies travel with exact counts, or in parts of fixed size (moe/dispatchers/receive_buffers.h).
#pragma once

#include "witan/moe/dispatchers/dispatch.h"
#include "witan/moe/routing.h"
#include "witan/nn/axes.h"

namespace witan {

// The hosts that tokens visit, C = min(K, H) each at most.
struct HostVisits {
  Tensor hosts;   // [T, C] int32, ascending; -1: no further host
  Tensor counts;  // [H] int64: tokens for each host
};
// ids [T, K] of experts, of which each of `hosts` hosts has `experts`
HostVisits visits_of_hosts(Stream& stream, const Tensor& ids, int64_t hosts, int64_t experts);

// The copies of tokens that travel to other hosts, and their routing there. Immutable, as DispatchMap is.
struct HostMap {
  RowExchange copies;  // T tokens, C copies of each
  // The routing of the N received tokens, without weights, which arrive with the tokens: ids [N, K] of the host's
  // experts, -1 for other experts and in rows without a token; with the bounds for sending within the host.
  Routing arrived;
};
HostMap make_host_map(Stream& stream, const Routing& routing, const ExpertHosts& hosts);

struct HostArrivals {
  Var tokens;   // [N, D]
  Var weights;  // [N, K]
};
// x [T, D], weights [T, K]. `meanwhile` is computed while copies travel.
HostArrivals copy_to_hosts(Tape& tape, const Var& x, const Var& weights, const HostMap& map,
                           const ops::Meanwhile* meanwhile = nullptr);
// sums [N, D] of received tokens -> [T, D]: each token's sum over hosts.
Var sum_over_hosts(Tape& tape, const Var& sums, const HostMap& map);

}  // namespace witan
