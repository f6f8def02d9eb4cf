// How tokens get to their experts and back: the interface of dispatchers, and the one that the axes ask for.
#pragma once

#include <functional>
#include <memory>

#include "witan/moe/config.h"
#include "witan/moe/dispatchers/dispatch.h"
#include "witan/nn/axes.h"

namespace witan {

class ExpertPools;

// How a dispatcher may place rows and experts in training; by default rows travel as they come, to their own experts.
struct DispatchLimits {
  const ExpertPools* pools = nullptr;  // bounds the rows that come to a rank (expert_pools.h); null: nothing does
  int64_t replica_slots = 0;           // of each rank, for replicas of other ranks' experts (replicas.h)
};

class TokenDispatcher {
 public:
  // rows [capacity, D], row_weights [capacity] -> [capacity, D], grouped as ExpertRows says; or tokens [T, D] in place
  // -> [T, D] (Dispatched::in_place)
  using RunExperts = std::function<Var(Tape& tape, const Dispatched& in, const ExpertRows& rows)>;

  virtual ~TokenDispatcher() = default;
  // tokens [T, D] -> [T, D]: for each token the sum of what its experts make of it. `experts` is kept for the backward
  // where limits.pools makes it run them again. `meanwhile` is computed while rows travel to their experts, once, or
  // not at all where they do not, or do so in waves.
  virtual Var forward(Tape& tape, const Var& tokens, const Routing& routing, const RunExperts& experts,
                      const DispatchLimits& limits = {}, const ops::Meanwhile* meanwhile = nullptr) = 0;
};

std::unique_ptr<TokenDispatcher> make_dispatcher(const MoeConfig& config, const ModelAxes& axes);

}  // namespace witan
