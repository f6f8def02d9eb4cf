// The table of addresses that rank 0 sends: it is either refused, or keeps its meaning when written again. First byte:
// the number of ranks; second: the number of bytes that arrive at a time.
#include <algorithm>

#include "fuzz/support.h"
#include "witan/comm/processes/bootstrap.h"

namespace {

// Returns whether the table is complete.
bool read(witan::RankTableReader& reader, std::span<const std::byte> words, size_t at_once) {
  for (auto room = reader.room(); !room.empty() && !words.empty(); room = reader.room()) {
    const auto piece = words.first(std::min({at_once, room.size(), words.size()}));
    std::ranges::copy(piece, room.begin());
    words = words.subspan(piece.size());
    reader.advance(piece.size());
  }
  return reader.room().empty();
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  if (size < 2) return 0;
  const int ranks = data[0];
  fuzz::expect_own_errors([&] {
    RankTableReader reader(ranks);
    if (!read(reader, std::as_bytes(std::span(data, size)).subspan(2), data[1] == 0 ? size : data[1])) return;
    const RankTable& table = reader.table();
    assert(table.trouble.empty() ? table.places.size() == data[0] : table.places.empty());
    for (const RankPlace& place : table.places) assert(place.port >= 0 && place.port <= 65535);
    RankTableReader again(ranks);
    const auto packed = pack_table(table);
    assert(read(again, packed, packed.size()) && again.table().trouble == table.trouble);
    for (size_t rank = 0; rank < table.places.size(); ++rank)
      assert(again.table().places[rank].address == table.places[rank].address);
  });
  return 0;
}
