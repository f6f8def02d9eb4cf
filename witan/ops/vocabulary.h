// A vocabulary whose entries are divided among ranks: rows of an embedding's table, columns of the logits.
#pragma once

#include <cstdint>

namespace witan::ops {

// Of the ids [0, size), a rank holds those from `begin` on, as many as its tensor has rows or columns: none perhaps,
// and not as many as another rank. Together the ranks hold each id once.
struct VocabularyPart {
  int64_t begin = 0, size = 0;
};

}  // namespace witan::ops
