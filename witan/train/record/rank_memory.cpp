#include "witan/train/record/rank_memory.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

namespace witan {
namespace {

// bytes [1 + kMemoryTags]: the peak, then each tag's.
std::vector<int64_t> measured_memory(const Arena& arena) {
  std::vector<int64_t> bytes = {arena.high_water()};
  for (int tag = 0; tag < kMemoryTags; ++tag) bytes.push_back(arena.peak(static_cast<MemoryTag>(tag)));
  return bytes;
}
MemoryEvent memory_event(int rank, std::span<const int64_t> bytes) {
  MemoryEvent memory;
  memory.rank = rank;
  memory.peak = bytes[0];
  for (int tag = 0; tag < kMemoryTags; ++tag)
    memory.tags[std::string(name_of(static_cast<MemoryTag>(tag)))] = bytes[static_cast<size_t>(tag) + 1];
  return memory;
}

}  // namespace

std::vector<MemoryEvent> gather_memory(Stream& stream, Group& group, const Arena& own) {
  constexpr int64_t kFigures = kMemoryTags + 1;
  const Tensor all = stream.empty({group.size() * kFigures}, DType::i64, MemoryTag::communication);
  const Tensor mine = all.narrow(0, group.rank() * kFigures, kFigures);
  std::ranges::copy(measured_memory(own), mine.data<int64_t>());
  group.all_gather(stream, all, mine);
  std::vector<MemoryEvent> events;
  for (int rank = 0; rank < group.size(); ++rank)
    events.push_back(memory_event(rank, all.span<int64_t>().subspan(static_cast<size_t>(rank * kFigures), kFigures)));
  return events;
}

}  // namespace witan
