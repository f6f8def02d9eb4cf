// What those who run a model lend its modules, once, after it is built (Module::attach). It must outlive its use.
#pragma once

#include <cstdint>

namespace witan {

class ActivationAccess;  // model/activation_statistics.h
class ExpertPools;       // moe/dispatchers/expert_pools.h
class GlobalLoad;        // moe/routers/balance.h
class Stream;
class UnitAccess;    // model/unit.h
struct RouteAccess;  // moe/routers/router.h

// A service that is null leaves a module with what it was given before, at first nothing.
struct ModelServices {
  UnitAccess* units = nullptr;         // makes the values of units available; without it they always are
  const ExpertPools* pools = nullptr;  // bounds the rows that come to a rank's experts in training
  Stream* tensor_side = nullptr;       // on it tensor-parallel ranks exchange tokens while they compute (model/lanes.h)
  // On it rows travel to their experts while the shared experts compute; without it these come after the routed ones.
  Stream* expert_side = nullptr;
  ActivationAccess* activations = nullptr;  // where training forwards leave the moments of their layers' activations
  RouteAccess* routes = nullptr;            // records the routers' choices, or makes them
  GlobalLoad* global_load = nullptr;        // counts the load of the global batch; without it a micro-batch is all

  // The model sets these for each of its blocks.
  int64_t layer = 0;   // number in the whole model; those of MTP modules follow the layers
  int64_t router = 0;  // number among the routers that this rank holds
};

}  // namespace witan
