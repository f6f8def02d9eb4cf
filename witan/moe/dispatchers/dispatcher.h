// Dispatchers bring tokens to their experts and back: their interface, and the dispatcher that the configuration and
// the axes ask for.
#pragma once

#include <functional>
#include <memory>

#include "witan/moe/config.h"
#include "witan/moe/dispatchers/dispatch.h"
#include "witan/nn/axes.h"

namespace witan {

class ReceiveBuffers;

// How a dispatcher may place rows and experts in training; by default rows travel with exact counts to their own
// experts.
struct DispatchLimits {
  const ReceiveBuffers* receive_buffers =
      nullptr;                // bounds the rows that a rank receives (receive_buffers.h); null: unbounded
  int64_t replica_slots = 0;  // each rank's, for replicas of other ranks' experts (replicas.h)
};

class TokenDispatcher {
 public:
  // rows [capacity, D], row_weights [capacity] -> [capacity, D], grouped as ExpertRows says; or tokens [T, D] in place
  // -> [T, D] (Dispatched::in_place)
  using RunExperts = std::function<Var(Tape& tape, const Dispatched& in, const ExpertRows& rows)>;

  virtual ~TokenDispatcher() = default;
  // tokens [T, D] -> [T, D]: the sum of each token's expert outputs. `experts` is kept for the backward if
  // limits.receive_buffers makes it run them again. `meanwhile` is computed once, while rows travel to their experts,
  // and not at all if no row travels or if rows do so in several passes.
  virtual Var forward(Tape& tape, const Var& tokens, const Routing& routing, const RunExperts& experts,
                      const DispatchLimits& limits = {}, const ops::Meanwhile* meanwhile = nullptr) = 0;
};

std::unique_ptr<TokenDispatcher> make_dispatcher(const MoeConfig& config, const ModelAxes& axes);

}  // namespace witan
