#include "witan/tokenizer/models/matching_bpe.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace witan {
namespace {

uint32_t rank_of_merge(const TokenizerSpec& spec, size_t merge) {
  return spec.merge_ranks.empty() ? static_cast<uint32_t>(merge) : spec.merge_ranks[merge];
}

}  // namespace

std::optional<MatchingBpe> MatchingBpe::make(const TokenizerSpec& spec, const MergeTable& merges,
                                             std::span<const int32_t, 256> bytes) {
  if (spec.tokens.size() > kNoToken) return std::nullopt;
  MatchingBpe made(merges);
  made.tokens_.resize(spec.tokens.size());
  for (const int32_t id : bytes) {
    if (id < 0) return std::nullopt;
    made.tokens_[static_cast<size_t>(id)].length = 1;
  }
  if (!made.index_pairs(spec)) return std::nullopt;
  if (!made.derive(spec)) return std::nullopt;
  made.mark_early_merges(spec);
  if (!made.index_tokens(spec)) return std::nullopt;
  return made;
}

// In the order of ranks, so that a merge comes after the merges of its parts.
bool MatchingBpe::derive(const TokenizerSpec& spec) {
  std::vector<uint32_t> order(spec.merges.size());
  std::iota(order.begin(), order.end(), 0);
  if (!std::is_sorted(spec.merge_ranks.begin(), spec.merge_ranks.end()))
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return spec.merge_ranks[a] < spec.merge_ranks[b]; });
  const auto text = [&](int32_t id) { return std::string_view(spec.tokens[static_cast<size_t>(id)]); };
  for (const uint32_t i : order) {
    const auto [left, right, result] = spec.merges[i];
    Token& made = tokens_[static_cast<size_t>(result)];
    if (made.length > 0 || token(left).length == 0 || token(right).length == 0) continue;
    const uint32_t rank = rank_of_merge(spec, i);
    if (comes_early(spec.merges[i], rank)) continue;
    const Neighbours before = check_neighbours(left, right);
    if (before == Neighbours::merge) continue;
    const MergeTable::Entry& entry = merges_->find(left, right);
    if (entry.rank != rank || entry.result != result) continue;  // a later merge of the same pair takes precedence
    const size_t left_size = text(left).size();
    if (text(result).substr(0, left_size) != text(left) || text(result).substr(left_size) != text(right)) return false;
    made.left_id = static_cast<uint32_t>(left);
    made.right_id = static_cast<uint32_t>(right);
    made.time = rank + 1;
    made.length = token(left).length + token(right).length;
    made.in_order = before == Neighbours::stay && token(left).in_order != 0 && token(right).in_order != 0 ? 1 : 0;
  }
  return true;
}

bool MatchingBpe::index_tokens(const TokenizerSpec& spec) {
  std::vector<int32_t> ids;
  for (size_t id = 0; id < tokens_.size(); ++id)
    if (tokens_[id].length > 0) ids.push_back(static_cast<int32_t>(id));
  if (!trie_.build(spec.tokens, ids)) return false;
  for (const int32_t id : ids) {
    const std::string_view text = spec.tokens[static_cast<size_t>(id)];
    if (const int32_t shorter = trie_.longest_prefix(text.substr(0, token(id).length - 1)); shorter >= 0)
      tokens_[static_cast<size_t>(id)].shorter_id = static_cast<uint32_t>(shorter);
  }
  return true;
}

bool MatchingBpe::index_pairs(const TokenizerSpec& spec) {
  constexpr size_t kAhead = 16;  // number of pairs that are prefetched
  pairs_ = PairRanks(spec.merges.size(), tokens_.size());
  for (size_t i = 0; i < spec.merges.size(); ++i) {
    if (i + kAhead < spec.merges.size())
      __builtin_prefetch(pairs_.place_of(spec.merges[i + kAhead].left, spec.merges[i + kAhead].right));
    const uint64_t rank = 2 * uint64_t{rank_of_merge(spec, i)};
    if (!pairs_.has_room_for(rank + 1)) return false;
    pairs_.put(spec.merges[i].left, spec.merges[i].right, rank);
  }
  return true;
}

void MatchingBpe::mark_early_merges(const TokenizerSpec& spec) {
  for (const Merge& merge : spec.merges) {
    if (token(merge.result).length > 0) continue;
    const uint64_t rank = pairs_.find(merge.left, merge.right);
    if (rank % 2 == 0 && comes_early(merge, static_cast<uint32_t>(rank / 2)))
      pairs_.put(merge.left, merge.right, rank + 1);
  }
}

// Whether the merge has a lower rank than a merge that produces one of its parts, and no other merge produces its
// result. (If another merge does, the text is always merged that way, and the two parts never become neighbours.)
bool MatchingBpe::comes_early(const Merge& merge, uint32_t rank) const {
  return std::max(token(merge.left).time, token(merge.right).time) > rank && token(merge.result).length == 0;
}

// Undoes the merges that produced the two tokens, the last one first, and checks each time whether the two parts that
// touch would have merged with each other before the undone merge. Of equal ranks the left merge comes first.
MatchingBpe::Neighbours MatchingBpe::check_neighbours(int32_t left, int32_t right) const {
  Neighbours found = Neighbours::stay;
  for (;;) {
    const Token &l = token(left), &r = token(right);
    if (l.time == 0 && r.time == 0) return found;
    const bool undoes_left = l.time > r.time;
    const uint32_t time = undoes_left ? l.time : r.time + 1;
    (undoes_left ? left : right) = undoes_left ? l.right() : r.left();
    if (!pairs_.may_have(left, right)) continue;
    const uint64_t rank = pairs_.find(left, right);
    if (rank == PairRanks::kNone) continue;
    if (comes_early({left, right, merges_->find(left, right).result}, static_cast<uint32_t>(rank / 2)))
      found = Neighbours::unknown;
    else if (rank / 2 + 1 < time)
      return Neighbours::merge;
  }
}

void MatchingBpe::encode(std::span<NewWord> words) const {
  size_t next = 0;
  std::array<Interleaved, kAtOnce> all;
  const std::span<Interleaved> tasks = std::span(all).first(std::min(words.size(), kAtOnce));
  for (Interleaved& task : tasks) task = encode_interleaved(words, next);
  run_interleaved(tasks);
}

// Repeats the logic of the functions above in one body, because only the coroutine itself can co_await.
Interleaved MatchingBpe::encode_interleaved(std::span<NewWord> words, size_t& next) const {
  constexpr size_t kHotBytes = 4;  // the trie's nodes of this many first bytes stay in the cache
  while (next < words.size()) {
    NewWord& word = words[next++];
    if (word.is_encoded) continue;
    const std::string_view text = word.text;
    std::vector<bool> dead;  // positions from which no token leads on; most words have none
    size_t at = 0;
    int32_t id = -1;
    while (at < text.size()) {
      if (id < 0) {  // the longest token
        uint32_t base = trie_.root();
        for (size_t i = at; i < text.size(); ++i) {
          const auto label = static_cast<unsigned char>(text[i]);
          const TokenTrie::Node* const node = trie_.child(base, label);
          if (i >= at + kHotBytes) co_await fetch(node);
          if (!TokenTrie::is_child(*node, label)) break;
          if (node->id >= 0) id = node->id;
          base = node->base;
        }
        if (word.count > 0) __builtin_prefetch(pairs_.filter_of(word.tokens[word.count - 1], id));
        co_await fetch(&token(id));
      }
      const size_t end = at + token(id).length;
      Neighbours found = dead.empty() || !dead[end] ? Neighbours::stay : Neighbours::merge;
      if (token(id).in_order == 0) found = Neighbours::unknown;
      if (found == Neighbours::stay && word.count > 0) {
        int32_t left = word.tokens[word.count - 1], right = id;
        uint64_t time = UINT64_MAX;  // of the undone merge, plus one if a merge of equal rank comes first
        for (;;) {
          if (pairs_.may_have(left, right)) {
            co_await fetch(pairs_.place_of(left, right));
            if (const uint64_t rank = pairs_.find(left, right); rank != PairRanks::kNone) {
              if ((rank & 1) != 0)
                found = Neighbours::unknown;
              else if (rank / 2 + 1 < time) {
                found = Neighbours::merge;
                break;
              }
            }
          }
          const Token &l = token(left), &r = token(right);
          if (l.time == 0 && r.time == 0) break;
          const bool undoes_left = l.time > r.time;
          time = undoes_left ? l.time : uint64_t{r.time} + 1;
          int32_t& part = undoes_left ? left : right;
          part = undoes_left ? l.right() : r.left();
          __builtin_prefetch(&token(part));
          co_await fetch(pairs_.filter_of(left, right));
        }
      }
      if (found == Neighbours::unknown) break;
      if (found == Neighbours::stay) {
        word.tokens[word.count++] = id;
        at = end;
        id = -1;
        continue;
      }
      id = token(id).shorter();
      if (id >= 0) {
        if (word.count > 0) __builtin_prefetch(pairs_.filter_of(word.tokens[word.count - 1], id));
        co_await fetch(&token(id));
        continue;
      }
      dead.resize(text.size() + 1);
      dead[at] = true;
      id = word.tokens[--word.count];
      at -= token(id).length;
    }
    word.is_encoded = at == text.size();
  }
}

}  // namespace witan
