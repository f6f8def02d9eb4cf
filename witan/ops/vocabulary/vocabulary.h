// A vocabulary that is sharded over tensor-parallel ranks: rows of the embedding table, columns of the logits.
#pragma once

#include <algorithm>
#include <cstdint>

namespace witan::ops {

// Of the ids [0, size), a rank holds those from `begin` on, as many as its tensor has rows or columns: none perhaps,
// and not as many as another rank. Together the ranks hold each id once, and then `padding` entries that stand for
// nothing, so that sizes suit the hardware: no id names them, no loss knows them, and their gradients are exactly 0.
struct VocabularyPart {
  int64_t begin = 0, size = 0, padding = 0;

  int64_t entries() const { return size + padding; }
  // Of `count` entries from `begin` on, those that are ids.
  int64_t words(int64_t count) const { return std::clamp<int64_t>(size - begin, 0, count); }
};

}  // namespace witan::ops
