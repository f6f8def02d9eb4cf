// Engines on thread ranks that save checkpoints.
#pragma once

#include <functional>

#include "train/step/run_support.h"
#include "witan/checkpoint/background_save.h"

namespace witan::testing {

// A rank's actions on its engine and on saves of its state.
using SavingBody = std::function<void(Engine&, BackgroundSave&, const Layout&, int rank)>;

inline void with_saving_engines(const RunConfig& config, const SavingBody& body) {
  with_engines_in_world(config, [&](ThreadWorld& world, Stream&, const Groups& groups, Engine& engine) {
    const Layout& layout = groups.layout();
    const int rank = groups.rank();
    BackgroundSave saving(world.group(rank, layout.mesh().ranks(rank, layout.world_axes()), "checkpoint"), 20);
    body(engine, saving, layout, rank);
  });
}

}  // namespace witan::testing
