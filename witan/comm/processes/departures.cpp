#include "witan/comm/processes/departures.h"

#include <cassert>
#include <cstring>

#include "witan/comm/processes/inbox.h"

namespace witan {
namespace {

struct Entry {
  uint32_t rank = 0, unused = 0;
  uint64_t messages = 0;
};
static_assert(sizeof(Entry) == kDepartureBytes);

}  // namespace

std::vector<std::byte> pack_departures(std::span<const Departure> departures) {
  assert(departures.size() * sizeof(Entry) <= kMostDeparturesBytes);
  std::vector<std::byte> bytes(departures.size() * sizeof(Entry));
  for (size_t i = 0; i < departures.size(); ++i) {
    const Entry entry{static_cast<uint32_t>(departures[i].rank), 0, departures[i].messages};
    std::memcpy(bytes.data() + i * sizeof entry, &entry, sizeof entry);
  }
  return bytes;
}

std::optional<std::vector<Departure>> parse_departures(std::span<const std::byte> bytes, int ranks) {
  if (bytes.size() % sizeof(Entry) != 0) return std::nullopt;
  std::vector<Departure> departures;
  for (; !bytes.empty(); bytes = bytes.subspan(sizeof(Entry))) {
    Entry entry;
    std::memcpy(&entry, bytes.data(), sizeof entry);
    if (entry.rank >= static_cast<uint32_t>(ranks) || entry.unused != 0) return std::nullopt;
    departures.push_back({static_cast<int>(entry.rank), entry.messages});
  }
  return departures;
}

}  // namespace witan
