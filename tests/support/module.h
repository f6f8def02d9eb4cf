// Helpers for tests of modules: gradient buffers for their parameters, and a group of one rank.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "support/rank.h"
#include "witan/comm/meta.h"
#include "witan/nn/module.h"

namespace witan::testing {

// An axis of one rank, which sends nothing.
struct Alone : MetaGroup {
  Alone() : MetaGroup(1, 0, "expert") {}
};

// Gives every parameter its own gradient buffer, poisoned so that unwritten elements show.
inline void bind_gradients(Stream& stream, const Module& module) {
  for (Parameter* parameter : module.parameters()) {
    const Tensor gradient =
        stream.empty(parameter->value().shape(), accumulator(parameter->value().dtype()), MemoryTag::gradients);
    if (!stream.is_meta())
      dispatch_floating(gradient.dtype(), [&]<class T>() { std::ranges::fill(gradient.span<T>(), T(std::nanf(""))); });
    parameter->bind_gradient(gradient);
  }
}

// The gradients of all parameters, in order.
inline std::vector<std::vector<double>> gradients_of(const Module& module) {
  std::vector<std::vector<double>> all;
  for (Parameter* parameter : module.parameters()) all.push_back(values(parameter->gradient()));
  return all;
}

}  // namespace witan::testing
