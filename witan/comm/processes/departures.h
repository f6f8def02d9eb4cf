// That ranks have left a job for good, as its ranks tell each other through rank 0.
//
// A rank that leaves tells rank 0 how many messages it has sent to each other one by an engine (message_engine.h); rank
// 0 then tells each of the others who has left, and how many messages are theirs: where they have not come yet, the
// rank is still of use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace witan {

// Of rank 0 to another one: who has left. Of another one to rank 0: to whom it has sent.
struct Departure {
  int rank = 0;
  uint64_t messages = 0;
};

// 16 bytes each: the rank, 0, the messages; little-endian. Of as many as a frame holds (kMostDeparturesBytes, inbox.h).
std::vector<std::byte> pack_departures(std::span<const Departure> departures);
// Nothing for bytes that are no such list of ranks of a job of `ranks` ranks.
std::optional<std::vector<Departure>> parse_departures(std::span<const std::byte> bytes, int ranks);

}  // namespace witan
