// Measures the offsets between the clocks of the ranks' hosts.
#pragma once

#include <cstdint>
#include <functional>

#include "witan/comm/group.h"
#include "witan/tensor/observer.h"

namespace witan {

// How far the clock of the first rank of `world` is ahead of this rank's, in nanoseconds: from the round trip that took
// least of several (Cristian, 1989). 0 where the difference is within what was measured: the same host's clock.
// Collective; `stream` is on the CPU.
int64_t first_clock_ahead_ns(Stream& stream, Group& world, const std::function<int64_t()>& clock = steady_ns);

// One moment, as each rank's own clock shows it. Likewise.
int64_t common_moment_ns(Stream& stream, Group& world, const std::function<int64_t()>& clock = steady_ns);

}  // namespace witan
