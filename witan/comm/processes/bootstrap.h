// Lets the processes of a job meet: all come to rank 0, which answers with a table of where each of them is heard.
//
// N ranks take N - 1 connections for that, of rank 0 with each: four messages (handshake.h) and a table on each, 256
// bytes and some ten for each rank. Other ranks connect to each other when they first send each other something
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

// What rank 0 tells every other rank once all have come: where each of them is heard; or why not all have come.
//
// A head of 8 bytes (0: places, 1: trouble; bytes of what follows), and then
//   places    the number of different hosts; of each its name and its address, with a byte of length before either;
//             of each rank the number of its host (4 bytes) and its port (2)
//   trouble   words
// little-endian: some 10 KB for 1,024 ranks on 128 hosts, which a connection takes at once, read or not.

// Where others find a rank.
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

// Takes a table of `size` ranks apart as its bytes arrive; nothing is allocated that such a table cannot need.
class RankTableReader {
 public:
  explicit RankTableReader(int size) : size_(size), bytes_(kHeadBytes) {}

  // Where the next bytes are to be put; empty once the table is whole.
  std::span<std::byte> room() { return std::span(bytes_).subspan(got_); }
  // Throws CommError where they are no such table.
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
