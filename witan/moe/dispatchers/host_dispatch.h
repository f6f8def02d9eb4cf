// Rows of experts that cross the network once for each host, where experts are divided over ranks of several hosts: as
// in DeepEP's kernels between nodes and in HybridEP.
//
// A token is copied to each host that has any of its experts: to the rank there that has the place of the token's own
// rank among its host's, with the numbers and the weights of its experts on that host. What has come to a rank is to
// the ranks of its host what tokens are to those of an expert axis, and dispatched as such. Each token's rows are
// summed within the host, the sum goes back to where the token came from, and there sums of hosts are added in their
// order. Gradients of tokens and weights go the same ways.
//
// Copies travel as they come, or in parts of one size (moe/dispatchers/expert_pools.h).
#pragma once

#include "witan/moe/dispatchers/dispatch.h"
#include "witan/moe/routing.h"
#include "witan/nn/axes.h"

namespace witan {

// Of C = min(K, H) hosts at most that a token visits.
struct HostVisits {
  Tensor hosts;   // [T, C] int32: in their order; -1: no other
  Tensor counts;  // [H] int64: tokens for each host
};
// ids [T, K] of `hosts` hosts with so many experts each
HostVisits visits_of_hosts(Stream& stream, const Tensor& ids, int64_t hosts, int64_t experts);

// Where copies of tokens go, and what comes with them. Immutable, as DispatchMap is.
struct HostMap {
  RowExchange copies;  // T tokens, C of each
  // For what arrives, N tokens: ids [N, K] of the host's experts, -1 where a token has none, or there is no token; with
  // the bounds of what a rank then sends within its host. Its weights arrive too.
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
// sums [N, D], of what has arrived -> [T, D]: each token's sum over hosts.
Var sum_over_hosts(Tape& tape, const Var& sums, const HostMap& map);

}  // namespace witan
