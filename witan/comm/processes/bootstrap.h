// Connects the processes of a job. Ranks meet in two steps: all come to rank 0, which answers with a table of where
// each is heard; then each connects to those of lower rank, so that each has a connection to each.
//
// N ranks take N - 1 connections of rank 0 for the first step: four messages (handshake.h) and a table on each, 256
// bytes and some ten for each rank; and two messages of 12 bytes for the second, which takes the other
// (N - 1) (N - 2) / 2 connections of four messages, and is the one that grows with the square.
#pragma once

#include <string>
#include <vector>

#include "witan/comm/processes/guests.h"
#include "witan/comm/processes/launch.h"
#include "witan/comm/processes/rank_table.h"
#include "witan/comm/processes/socket.h"

namespace witan {

// A rank of the job, as this process reaches it.
struct Peer {
  std::string host;  // its name
  Socket socket;     // closed for this process itself
};

// A rank that has come to rank 0; and rank 0, to which all have come.
class Meeting {
 public:
  // Without a secret ranks of this machine and user alone are heard. Throws ConfigError when rank 0 cannot listen,
  // CommError when a rank does not come within `seconds` (it is named, on all ranks that came) or is of another job.
  Meeting(const Launch& launch, double seconds);

  // The second step. All connections; by rank. `beside`: so many ranks of this process meet, each by a call of its own.
  // Throws CommError like the constructor, when a rank is lost or does not get there within as many seconds again.
  std::vector<Peer> connect(int beside = 1);

 private:
  void wait_for_all();
  void come_to_first();
  void connect_to_others();
  void hear_from_all();        // of rank 0
  std::string find_trouble();  // empty: all have connected

  Member self_;
  const Endpoint master_;
  const double seconds_;
  Socket listener_;
  RankTable table_;
  std::vector<Guest> guests_;  // of other ranks: rank 0 first
};

// Both steps.
std::vector<Peer> meet_peers(const Launch& launch, double seconds, int beside = 1);

}  // namespace witan
