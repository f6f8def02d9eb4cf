// How tokens get to their experts and back: the interface of dispatchers, and the one that the axes ask for.
#pragma once

#include <functional>
#include <memory>

#include "witan/moe/config.h"
#include "witan/moe/dispatch.h"
#include "witan/nn/axes.h"

namespace witan {

class TokenDispatcher {
 public:
  // rows [capacity, D], row_weights [capacity] -> [capacity, D], grouped as ExpertRows says; or tokens [T, D] in place
  // -> [T, D] (Dispatched::in_place)
  using RunExperts = std::function<Var(Tape& tape, const Dispatched& in, const ExpertRows& rows)>;

  virtual ~TokenDispatcher() = default;
  // tokens [T, D] -> [T, D]: for each token the sum of what its experts make of it. `experts` is kept for the backward
  // where routing.pools makes it run them again. `meanwhile` is computed while rows travel to their experts, once, or
  // not at all where they do not, or do so in waves.
  virtual Var forward(Tape& tape, const Var& tokens, const Routing& routing, const RunExperts& experts,
                      const ops::Meanwhile* meanwhile = nullptr) = 0;
};

std::unique_ptr<TokenDispatcher> make_dispatcher(const MoeConfig& config, const ModelAxes& axes);

}  // namespace witan
