#include "witan/tokenizer/vocabulary_match.h"

#include <algorithm>
#include <vector>

namespace witan {
namespace {

std::vector<bool> added_ids(const TokenizerSpec& spec, size_t ids) {
  std::vector<bool> added(ids);
  for (const AddedToken& token : spec.added)
    if (static_cast<size_t>(token.id) < ids) added[static_cast<size_t>(token.id)] = true;
  return added;
}

}  // namespace

VocabularyMatch match_vocabularies(const TokenizerSpec& a, const TokenizerSpec& b) {
  const size_t ids = std::min(a.tokens.size(), b.tokens.size());
  const std::vector<bool> added_to_a = added_ids(a, ids), added_to_b = added_ids(b, ids);
  VocabularyMatch match;
  std::optional<int32_t> first_renamed;
  for (size_t id = 0; id < ids; ++id) {
    if (a.tokens[id].empty() || b.tokens[id].empty()) continue;
    ++match.common;
    if (a.tokens[id] == b.tokens[id]) continue;
    const bool ordinary = !added_to_a[id] || !added_to_b[id];
    ++(ordinary ? match.different : match.renamed);
    std::optional<int32_t>& first = ordinary ? match.first : first_renamed;
    if (!first) first = static_cast<int32_t>(id);
  }
  if (!match.first) match.first = first_renamed;
  return match;
}

}  // namespace witan
