// Connects the processes of a job: every rank connects to rank 0, receives the addresses of all others, and connects to
// those of lower rank, so that each has a connection to each.
#pragma once

#include <string>
#include <vector>

#include "witan/comm/processes/launch.h"
#include "witan/comm/processes/socket.h"

namespace witan {

// A rank of the job, as this process reaches it.
struct Peer {
  std::string host;  // its name
  Socket socket;     // closed for this process itself
};

// All ranks together; by rank. Without a secret ranks of this machine alone are heard. Throws ConfigError when rank 0
// cannot listen, CommError when a rank does not come within `seconds` (it is named, on all ranks that came) or is of
// another job. `beside`: so many ranks of this process meet, each by a call of its own.
std::vector<Peer> meet_peers(const Launch& launch, double seconds, int beside = 1);

}  // namespace witan
