#include "witan/tokenizer/models/tokenizer_spec.h"

#include <algorithm>
#include <vector>

#include "witan/base/hash.h"

namespace witan {
namespace {

std::vector<bool> added_ids(const TokenizerSpec& spec, size_t ids) {
  std::vector<bool> added(ids);
  for (const AddedToken& token : spec.added)
    if (static_cast<size_t>(token.id) < ids) added[static_cast<size_t>(token.id)] = true;
  return added;
}

constexpr size_t kBlockIds = 64;
constexpr size_t kDigits = 8;  // of a block

// The digest of the tokens [begin, end).
std::string digest_of(const TokenizerSpec& spec, size_t begin, size_t end) {
  Hasher hasher;
  for (size_t id = begin; id < end; ++id) {
    const uint64_t size = spec.tokens[id].size();  // separates adjacent texts
    hasher.update(&size, sizeof size);
    hasher.update(spec.tokens[id].data(), spec.tokens[id].size());
  }
  return hasher.hex().substr(0, kDigits);
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

std::string vocabulary_digest(const TokenizerSpec& spec) {
  std::string digest;
  for (size_t begin = 0; begin < spec.tokens.size(); begin += kBlockIds)
    digest += digest_of(spec, begin, std::min(begin + kBlockIds, spec.tokens.size()));
  return digest;
}

DigestMatch match_digest(const std::string& digest, int64_t ids, const TokenizerSpec& spec) {
  DigestMatch match;
  for (size_t begin = 0, at = 0; begin < static_cast<size_t>(ids); begin += kBlockIds, at += kDigits) {
    const size_t end = std::min(begin + kBlockIds, static_cast<size_t>(ids));
    if (end > spec.tokens.size() || at + kDigits > digest.size()) break;
    ++match.common;
    if (digest.compare(at, kDigits, digest_of(spec, begin, end)) != 0) ++match.different;
  }
  return match;
}

}  // namespace witan
