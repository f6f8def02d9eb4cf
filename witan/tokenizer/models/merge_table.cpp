#include "witan/tokenizer/models/merge_table.h"

#include <bit>

namespace witan {

MergeTable::MergeTable(const std::vector<Merge>& merges, const std::vector<uint32_t>& ranks)
    : entries_(std::bit_ceil(2 * merges.size() + 2)) {
  for (size_t i = 0; i < merges.size(); ++i) {
    const Merge& m = merges[i];
    const uint64_t hash = hash_of(m.left, m.right);
    entries_[place(m.left, m.right, hash)] = {m.left, m.right, ranks.empty() ? static_cast<uint32_t>(i) : ranks[i],
                                              m.result};
  }
}

}  // namespace witan
