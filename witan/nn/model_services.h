// Services that the engine, or another user of a model, lends its modules once, after it is built (Module::attach).
// They must outlive their use.
#pragma once

#include <cstdint>

namespace witan {

class ActivationAccess;  // model/activation_statistics.h
class ReceiveBuffers;    // moe/dispatchers/receive_buffers.h
class GlobalLoad;        // moe/routers/balance.h
class OffloadStore;      // autograd/offload_store.h
class Stream;
class UnitAccess;    // model/unit.h
struct RouteAccess;  // moe/routers/router.h

// A null service leaves a module with the one that it had before, if any.
struct ModelServices {
  UnitAccess* units = nullptr;                      // makes the values of units available; without it they always are
  const ReceiveBuffers* receive_buffers = nullptr;  // limits the rows that a rank's experts receive in training
  Stream* tensor_side = nullptr;  // tensor-parallel exchanges run on it beside computation (model/lanes.h)
  // Rows travel to their experts on it while the shared experts compute; without it these run after the routed ones.
  Stream* expert_side = nullptr;
  // Takes the inputs of blocks that are recomputed until their backward; without it they stay on the device.
  OffloadStore* offload = nullptr;
  ActivationAccess* activations = nullptr;  // takes the moments of activations in training forwards
  RouteAccess* routes = nullptr;            // records the routers' choices, or replays them
  GlobalLoad* global_load = nullptr;   // counts the load of the global batch; without it a micro-batch counts alone
  const bool* adapters_off = nullptr;  // while it is true, low-rank adapters add nothing: the base model computes

  // The model sets these for each of its blocks.
  int64_t layer = 0;   // number in the whole model; those of MTP modules follow the layers
  int64_t router = 0;  // number among the routers that this rank holds
  bool last = false;   // whether it is the last layer, whose backward comes first
};

}  // namespace witan
