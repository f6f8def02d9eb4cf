// Lets the processes of a job meet: all connect to rank 0, which answers with a table of the addresses of all.
//
// N ranks need N - 1 connections, one from each to rank 0, with four messages (handshake.h) and a table on each: 256
// bytes and about ten for each rank. Other ranks connect to each other when one first sends the other something
// (links.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "witan/comm/processes/handshake.h"
#include "witan/comm/processes/launch.h"
#include "witan/comm/processes/socket.h"

namespace witan {

// The table that rank 0 sends to every other rank once all have come: the address of each, or why not all have come.
//
// It has a head of 8 bytes (0: places, 1: trouble; the number of bytes that follow), and then
//   places    the number of different hosts; for each its name and its address, each after a byte of length;
//             for each rank the number of its host (4 bytes) and its port (2)
//   trouble   text
// in little-endian: about 10 KB for 1,024 ranks on 128 hosts, which a connection buffers at once, read or not.

// The address of a rank.
struct RankPlace {
  std::string host;  // its name
  std::string address;
  int port = 0;
};

struct RankTable {
  std::vector<RankPlace> places;  // by rank
  std::string trouble;            // empty: there is none
};

// Texts that are too long for the table are cut.
std::vector<std::byte> pack_table(const RankTable& table);

// Parses a table of `size` ranks as its bytes arrive. Allocates nothing that such a table cannot need.
class RankTableReader {
 public:
  explicit RankTableReader(int size) : size_(size), bytes_(kHeadBytes) {}

  // The buffer for the next bytes; empty once the table is whole.
  std::span<std::byte> room() { return std::span(bytes_).subspan(got_); }
  // Takes `bytes` bytes that were put into room(). Throws CommError if they are no such table.
  void advance(size_t bytes);
  const RankTable& table() const { return table_; }

 private:
  static constexpr size_t kHeadBytes = 8;
  void read_head();
  void read_places();

  const int size_;
  std::vector<std::byte> bytes_;
  size_t got_ = 0;
  RankTable table_;
};

// A rank of the job, as this process knows it.
struct Peer {
  std::string host;  // its name
  Endpoint at;       // where it listens; nowhere for rank 0, to which all are connected
  Socket socket;     // open if this process is connected to it
};

// The state of a process once all ranks have met.
struct Met {
  Member self;
  std::vector<Peer> peers;  // by rank
  Socket listener;          // for connections of the others; closed on rank 0
};

// `beside`: the number of ranks of this process, each of which meets by a call of its own. Without a secret, only ranks
// of this machine and user are accepted. Throws ConfigError when rank 0 cannot listen, or may not open enough files;
// CommError when a rank does not come within `seconds` (it is named, on all ranks that came), is lost meanwhile, or is
// of another job.
Met meet_peers(const Launch& launch, double seconds, int beside = 1);

}  // namespace witan
