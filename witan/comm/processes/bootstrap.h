// Lets the processes of a job meet: all come to rank 0, which answers with a table of where each of them is heard.
//
// N ranks take N - 1 connections for that, of rank 0 with each: four messages (handshake.h) and a table on each, 256
// bytes and some ten for each rank. Other ranks connect to each other when they first send each other something
// (links.h).
#pragma once

#include <string>
#include <vector>

#include "witan/comm/processes/handshake.h"
#include "witan/comm/processes/launch.h"
#include "witan/comm/processes/socket.h"

namespace witan {

// A rank of the job, as this process knows it.
struct Peer {
  std::string host;  // its name
  Endpoint at;       // where it is heard; rank 0, to which all are connected: nowhere
  Socket socket;     // open where this process is connected to it
};

// A process, once all ranks have met.
struct Met {
  Member self;
  std::vector<Peer> peers;  // by rank
  Socket listener;          // where the others connect to this process; closed on rank 0
};

// `beside`: so many ranks of this process meet, each by a call of its own. Without a secret ranks of this machine and
// user alone are heard. Throws ConfigError when rank 0 cannot listen, or may not open enough files; CommError when a
// rank does not come within `seconds` (it is named, on all ranks that came), is lost meanwhile, or is of another job.
Met meet_peers(const Launch& launch, double seconds, int beside = 1);

}  // namespace witan
