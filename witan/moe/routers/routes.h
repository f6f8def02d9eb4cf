// Routes that are recorded and replayed: what routers tell of their choices, and are told to choose instead.
#pragma once

#include <cstdint>

#include "witan/tensor/tensor.h"

namespace witan {

// Given to routers (Router::attach), which call it for the tokens at hand, in the order of their logits.
struct RouteAccess {
  virtual ~RouteAccess() = default;
  // ids [T, K] int32, each of a token's experts once: the experts to use instead of the router's own choice, whose
  // weights the router still forms from its scores, so that it learns. Undefined: it chooses itself. A recomputed
  // forward asks again.
  virtual Tensor recorded(int64_t router) = 0;
  // What it uses, before anything is dropped: ids [T, K] int32, weights [T, K] accumulator dtype. Not called by a
  // forward that is recomputed.
  virtual void record(Stream& stream, int64_t router, const Tensor& ids, const Tensor& weights) = 0;
};

}  // namespace witan
