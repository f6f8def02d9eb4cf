// Verifies before the first step that all ranks have the same settings and would call the same collectives. Collective
// over all ranks of the world.
#pragma once

#include "witan/comm/checks/preflight.h"
#include "witan/comm/host_group.h"
#include "witan/comm/peer_memory.h"
#include "witan/parallel/layout.h"
#include "witan/train/run/resolve.h"

namespace witan {

// The configuration's keys and values, but for those that each host has its own of: threads.
Settings settings_of(RunConfig config);

// Throws ConfigError, naming keys, values and ranks, for settings that are not those of all ranks of the world.
void require_same_settings(World& world, int rank, const Settings& settings);

// The calls of the rank's first step, with as many micro-batches as show them all, from a step on the meta device.
// `peers`: how the rank's experts reach each other.
CallSchedule schedule_of_step(const ResolvedConfig& config, const Layout& layout, int rank,
                              PeerAccess peers = PeerAccess::none);

// Throws CommError where ranks of a group would not make the same calls in a step.
void require_same_schedule(World& world, int rank, const CallSchedule& schedule);

}  // namespace witan
