#include "witan/tokenizer/models/merge_table.h"

#include <algorithm>
#include <bit>
#include <string_view>
#include <tuple>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {
namespace {

constexpr size_t kLongestToken = 1024;  // published vocabularies stay below 256; bounds the work for a hostile file

}  // namespace

MergeTable::MergeTable(const std::vector<Merge>& merges, const std::vector<uint32_t>& ranks)
    : entries_(std::bit_ceil(2 * merges.size() + 2)) {
  for (size_t i = 0; i < merges.size(); ++i) {
    const Merge& m = merges[i];
    const uint64_t hash = hash_of(m.left, m.right);
    entries_[place(m.left, m.right, hash)] = {m.left, m.right, ranks.empty() ? static_cast<uint32_t>(i) : ranks[i],
                                              m.result};
  }
}

void add_merges(TokenizerSpec& spec, const std::vector<int32_t>& ids, const TokenMap& known,
                const std::vector<uint32_t>& rank_of, bool characters) {
  std::vector<Merge> found;
  for (const int32_t id : ids) {
    const std::string_view token = spec.tokens[static_cast<size_t>(id)];
    require<DataError>(token.size() <= kLongestToken, "the token ", id, ", \"", clipped(token), "\", has ",
                       token.size(), " bytes, more than ", kLongestToken,
                       ", so that its merges are too many to find: remove it from the vocabulary");
    for (size_t at = 1; at < token.size(); ++at) {
      if (characters && (static_cast<unsigned char>(token[at]) & 0xC0) == 0x80) continue;
      const int32_t left = known.find(token.substr(0, at));
      if (left < 0) continue;
      if (const int32_t right = known.find(token.substr(at)); right >= 0) found.push_back({left, right, id});
    }
  }
  std::sort(found.begin(), found.end(), [&](const Merge& a, const Merge& b) {
    const auto key = [&](const Merge& m) {
      return std::tuple(rank_of[static_cast<size_t>(m.result)], m.result, m.left, m.right);
    };
    return key(a) < key(b);
  });
  spec.merge_ranks.resize(found.size());
  std::transform(found.begin(), found.end(), spec.merge_ranks.begin(),
                 [&](const Merge& m) { return rank_of[static_cast<size_t>(m.result)]; });
  spec.merges = std::move(found);
}

}  // namespace witan
