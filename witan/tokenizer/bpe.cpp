#include "witan/tokenizer/bpe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <iterator>

#include "witan/base/error.h"

namespace witan {
namespace {

// Up to here looking for the lowest rank among all pairs beats a heap.
constexpr size_t kShortWord = 48;

// Ids that a word may become: those of the model's vocabulary, but no special token.
std::vector<bool> word_tokens(const TokenizerSpec& spec) {
  std::vector<bool> usable(spec.tokens.size());
  for (size_t id = 0; id < usable.size(); ++id) usable[id] = !spec.tokens[id].empty();
  for (const AddedToken& token : spec.added)
    if (token.special || !token.in_model) usable[static_cast<size_t>(token.id)] = false;
  return usable;
}

}  // namespace

MergeTable::MergeTable(const std::vector<Merge>& merges) : entries_(std::bit_ceil(2 * merges.size() + 2)) {
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& m = merges[rank];
    entries_[place(m.left, m.right)] = {m.left, m.right, static_cast<uint32_t>(rank), m.result};
  }
}

size_t MergeTable::place(int32_t left, int32_t right) const {
  const uint64_t key = static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  const size_t mask = entries_.size() - 1;
  for (size_t i = (key * 0x9E3779B97F4A7C15u) >> 32 & mask;; i = (i + 1) & mask) {
    const Entry& entry = entries_[i];
    if (entry.rank == kNone || (entry.left == left && entry.right == right)) return i;
  }
}

Bpe::Bpe(const TokenizerSpec& spec) : merges_(spec.merges), whole_(spec.tokens) {
  const std::vector<bool> usable = word_tokens(spec);
  std::fill(std::begin(byte_token_), std::end(byte_token_), -1);
  for (size_t id = 0; id < usable.size(); ++id)
    if (usable[id] && spec.tokens[id].size() == 1)
      byte_token_[static_cast<uint8_t>(spec.tokens[id][0])] = static_cast<int32_t>(id);
  for (int byte = 0; byte < 256; ++byte)
    require<DataError>(byte_token_[byte] >= 0, "the vocabulary has no token for the byte ", byte,
                       ", so some texts could not be encoded; train it with the full byte alphabet "
                       "(initial_alphabet=ByteLevel.alphabet() in Hugging Face tokenizers)");

  std::vector<int32_t> ids;
  for (size_t id = 0; id < usable.size(); ++id) {
    if (!usable[id]) continue;
    ids.clear();
    if (!spec.ignore_merges) encode_word(spec.tokens[id], ids);
    if (spec.ignore_merges || (ids.size() == 1 && ids[0] == static_cast<int32_t>(id)))
      whole_.insert(static_cast<int32_t>(id));
  }
}

void Bpe::encode_word(std::string_view word, std::vector<int32_t>& out) const {
  if (const int32_t id = whole_.find(word); id >= 0)
    out.push_back(id);
  else if (word.size() <= kShortWord)
    merge_short(word, out);
  else
    merge_long(word, out);
}

void Bpe::merge_short(std::string_view word, std::vector<int32_t>& out) const {
  std::array<int32_t, kShortWord> id;      // the symbols
  std::array<uint32_t, kShortWord> rank;   // of the pair (i, i+1)
  std::array<int32_t, kShortWord> result;  // what that pair becomes
  size_t n = word.size();
  const auto look_up = [&](size_t i) {
    const MergeTable::Entry& merge = merges_.find(id[i], id[i + 1]);
    rank[i] = merge.rank;
    result[i] = merge.result;
  };
  for (size_t i = 0; i < n; ++i) id[i] = byte_token_[static_cast<uint8_t>(word[i])];
  for (size_t i = 0; i + 1 < n; ++i) look_up(i);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i)
      if (rank[i] < rank[best]) best = i;
    if (rank[best] == MergeTable::kNone) break;
    id[best] = result[best];
    --n;
    for (size_t i = best + 1; i < n; ++i) {
      id[i] = id[i + 1];
      rank[i - 1] = rank[i];
      result[i - 1] = result[i];
    }
    if (best > 0) look_up(best - 1);
    if (best + 1 < n) look_up(best);
  }
  out.insert(out.end(), id.begin(), id.begin() + static_cast<ptrdiff_t>(n));
}

// A linked list of symbols, each with the merge that it and its right neighbour allow, and a heap of those merges. What
// a merge made obsolete stays in the heap and is recognised, when it comes up, by a rank that is no longer the
// symbol's. The heap's entries are eight bytes, rank and position: on a long word its misses of the cache are what
// takes the time.
void Bpe::merge_long(std::string_view word, std::vector<int32_t>& out) const {
  require<DataError>(word.size() < INT32_MAX, "a pre-token of ", word.size(),
                     " bytes is too long to encode; the limit is 2 GiB: break the text into shorter documents");
  struct Symbol {
    int32_t id, previous, next;         // next is the word's length at the end
    uint32_t rank = MergeTable::kNone;  // of the pair (this, next); none once merged into the left neighbour
    int32_t result = -1;                // what that pair becomes
  };
  const auto n = static_cast<int32_t>(word.size());
  std::vector<Symbol> symbols(word.size());
  std::vector<uint64_t> heap;  // rank << 32 | position, the smallest on top
  heap.reserve(word.size());
  const auto look_up = [&](int32_t i) {
    Symbol& symbol = symbols[i];
    const MergeTable::Entry& merge = merges_.find(symbol.id, symbols[symbol.next].id);
    symbol.rank = merge.rank;
    symbol.result = merge.result;
    if (merge.rank == MergeTable::kNone) return false;
    heap.push_back(static_cast<uint64_t>(merge.rank) << 32 | static_cast<uint32_t>(i));
    return true;
  };
  const auto push = [&](int32_t i) {
    if (look_up(i)) std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  for (int32_t i = 0; i < n; ++i) symbols[i] = {byte_token_[static_cast<uint8_t>(word[i])], i - 1, i + 1};
  for (int32_t i = 0; i + 1 < n; ++i) look_up(i);
  std::make_heap(heap.begin(), heap.end(), std::greater<>());

  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto i = static_cast<int32_t>(heap.back() & UINT32_MAX);
    const auto rank = static_cast<uint32_t>(heap.back() >> 32);
    heap.pop_back();
    Symbol& symbol = symbols[i];
    if (symbol.rank != rank) continue;
    Symbol& right = symbols[symbol.next];
    right.rank = MergeTable::kNone;
    symbol.id = symbol.result;
    symbol.rank = MergeTable::kNone;
    symbol.next = right.next;
    if (symbol.next < n) {
      symbols[symbol.next].previous = i;
      push(i);
    }
    if (symbol.previous >= 0) push(symbol.previous);
  }
  for (int32_t i = 0; i < n; i = symbols[i].next) out.push_back(symbols[i].id);
}

}  // namespace witan
