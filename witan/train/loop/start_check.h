// Verifies before the first step that all ranks have the same settings and will call the same collectives. Collective
// over all ranks of the world.
#pragma once

#include "witan/comm/checks/preflight.h"
#include "witan/comm/host_group.h"
#include "witan/comm/peer_memory.h"
#include "witan/parallel/layout.h"
#include "witan/train/config/resolve.h"

namespace witan {

// The configuration's keys and values, without `threads`, which may differ between hosts.
Settings settings_of(RunConfig config);

// Throws ConfigError, naming keys, values and ranks, if the settings differ between ranks of the world.
void require_same_settings(World& world, int rank, const Settings& settings);

// The collective calls of a step of the rank, from a step on the meta device with enough micro-batches to show them
// all. `peers`: whether the experts of a host use peer memory.
CallSchedule schedule_of_step(const ResolvedConfig& config, const Layout& layout, int rank,
                              PeerAccess peers = PeerAccess::none);

// Throws CommError if ranks of a group would make different calls in a step.
void require_same_schedule(World& world, int rank, const CallSchedule& schedule);

}  // namespace witan
