#include "witan/tokenizer/models/bpe.h"

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>

#include "witan/base/error.h"
#include "witan/tokenizer/text/unicode.h"

namespace witan {
namespace {

// Up to this length a linear scan for the lowest rank is faster than a heap.
constexpr size_t kShortWord = 48;

constexpr std::string_view kMetaspace = "\u2581";  // ▁, which stands for a space

// The ids that words may be encoded to: the model's vocabulary without special tokens.
std::vector<bool> word_tokens(const TokenizerSpec& spec) {
  std::vector<bool> usable(spec.tokens.size());
  for (size_t id = 0; id < usable.size(); ++id) usable[id] = !spec.tokens[id].empty();
  for (const AddedToken& token : spec.added)
    if (token.special || !token.in_model) usable[static_cast<size_t>(token.id)] = false;
  return usable;
}

// Whether no merge crosses the start of a run of ▁, so that each run starts a word of its own.
bool metaspace_begins_words(const TokenizerSpec& spec) {
  return std::none_of(spec.merges.begin(), spec.merges.end(), [&](const Merge& merge) {
    const std::string_view text = spec.tokens[static_cast<size_t>(merge.result)];
    for (size_t at = text.find(kMetaspace); at != std::string_view::npos; at = text.find(kMetaspace, at + 1))
      if (at > 0 && !text.substr(0, at).ends_with(kMetaspace)) return true;
    return false;
  });
}

}  // namespace

Bpe::Bpe(const TokenizerSpec& spec)
    : spec_(&spec),
      merges_(spec.merges, spec.merge_ranks),
      short_(spec.tokens, {}),
      whole_(spec.tokens),
      characters_(spec.tokens) {
  std::fill(std::begin(byte_token_), std::end(byte_token_), -1);
  const std::vector<bool> usable = word_tokens(spec);
  if (spec.byte_level)
    index_bytes(usable);
  else
    index_characters(usable);
  index_words(usable);
}

void Bpe::index_bytes(const std::vector<bool>& usable) {
  for (size_t id = 0; id < usable.size(); ++id)
    if (usable[id] && spec_->tokens[id].size() == 1)
      byte_token_[static_cast<uint8_t>(spec_->tokens[id][0])] = static_cast<int32_t>(id);
  for (int byte = 0; byte < 256; ++byte) {
    const bool in_text = byte < 0xC0 || (byte > 0xC1 && byte < 0xF1) || byte == 0xF3 || byte == 0xF4;
    lacks_bytes_ |= byte_token_[byte] < 0;
    require<DataError>(byte_token_[byte] >= 0 || !in_text, "the vocabulary has no token for the byte ", byte,
                       ", so some texts could not be encoded; train it with the full byte alphabet "
                       "(initial_alphabet=ByteLevel.alphabet() in Hugging Face tokenizers)");
  }
}

void Bpe::index_characters(const std::vector<bool>& usable) {
  for (size_t id = 0; id < usable.size(); ++id) {
    const std::string& token = spec_->tokens[id];
    if (usable[id] && character_length(token) == token.size()) characters_.insert(static_cast<int32_t>(id));
    if (const auto byte = spec_->byte_fallback ? byte_of_token(token) : std::nullopt)
      byte_token_[*byte] = static_cast<int32_t>(id);
  }
  runs_begin_words_ = metaspace_begins_words(*spec_);
  cuts_ = runs_begin_words_ && !spec_->ignore_merges && characters_.find(kMetaspace) >= 0;
}

const MatchingBpe* Bpe::matching() const {
  if (!spec_->byte_level) return nullptr;
  std::call_once(matching_->once, [&] { matching_->bpe = MatchingBpe::make(*spec_, merges_, byte_token_); });
  return matching_->bpe ? &*matching_->bpe : nullptr;
}

void Bpe::index_words(const std::vector<bool>& usable) {
  std::vector<int32_t> ids, all;
  const auto is_whole = [&](int32_t id) {
    if (spec_->ignore_merges) return true;
    if (matching() && matching()->is_encoding_of_its_text(id)) return true;
    ids.clear();
    merge_new(spec_->tokens[static_cast<size_t>(id)], ids);
    return ids.size() == 1 && ids[0] == id;
  };
  for (size_t i = 0; i < usable.size(); ++i)
    if (const auto id = static_cast<int32_t>(i); usable[i] && is_whole(id)) all.push_back(id);
  short_ = ShortTokens(spec_->tokens, all);
  if (spec_->byte_level)
    std::erase_if(
        all, [&](int32_t id) { return spec_->tokens[static_cast<size_t>(id)].size() <= ShortTokens::Key::kLongest; });
  whole_ = TokenMap(spec_->tokens, all.size());
  for (const int32_t id : all) whole_.insert(id);
}

void Bpe::encode_word(std::string_view word, std::vector<int32_t>& out) const {
  const char* const end = word.data() + word.size();
  encode_words({word.data(), {&end, 1}, end}, out);
}

void Bpe::encode_words(const Pieces& words, std::vector<int32_t>& out) const {
  Pieces part = words;
  WordBatch batch(WordCache::of_this_thread(), owner_);
  for (size_t done = 0; done < words.ends.size(); done += part.ends.size()) {
    part.ends = words.ends.subspan(done, std::min(WordBatch::kMost, words.ends.size() - done));
    encode_new(batch.look_up(part, short_));
    batch.append_to(out);
    part.begin = part.ends.back();
  }
}

// Encodes words together if matching applies, else one by one.
void Bpe::encode_new(std::span<NewWord> words) const {
  if (words.empty()) return;
  if (const MatchingBpe* matching = this->matching()) {
    if (spec_->ignore_merges)
      for (NewWord& word : words)
        if (const int32_t id = whole_.find(word.text); id >= 0) {
          word.tokens[word.count++] = id;
          word.is_encoded = true;
        }
    matching->encode(words);
  }
  std::vector<int32_t> ids;
  for (NewWord& word : words) {
    if (word.is_encoded) continue;
    ids.clear();
    merge_new(word.text, ids);
    word.count = ids.size();
    std::copy(ids.begin(), ids.end(), word.tokens);
  }
}

void Bpe::merge_new(std::string_view word, std::vector<int32_t>& out) const {
  if (const int32_t id = whole_.find(word); id >= 0)
    out.push_back(id);
  else if (spec_->byte_level)
    merge_bytes(word, out);
  else
    encode_characters(word, out);
  if (lacks_bytes_) std::erase(out, -1);
}

void Bpe::merge_bytes(std::string_view word, std::vector<int32_t>& out) const {
  merge_any(
      word.size(), [&](size_t i) { return byte_token_[static_cast<uint8_t>(word[i])]; }, out);
}

void Bpe::merge(const std::vector<int32_t>& symbols, std::vector<int32_t>& out) const {
  merge_any(
      symbols.size(), [&](size_t i) { return symbols[i]; }, out);
}

// Without a pre-tokenizer a word is a whole document. If no merge crosses the start of a run of ▁, encoding its parts
// gives the same tokens, and the working set stays in the cache.
void Bpe::encode_characters(std::string_view word, std::vector<int32_t>& out) const {
  if (!cuts_) return encode_part(word, out);
  size_t begin = 0;
  while (begin < word.size()) {
    size_t end = begin;
    while (word.substr(end).starts_with(kMetaspace)) end += kMetaspace.size();
    end = std::min(word.find(kMetaspace, end), word.size());
    const std::string_view part = word.substr(begin, end - begin);
    if (const int32_t id = whole_.find(part); id >= 0)
      out.push_back(id);
    else
      encode_part(part, out);
    begin = end;
  }
}

void Bpe::encode_part(std::string_view part, std::vector<int32_t>& out) const {
  std::vector<int32_t> symbols;
  symbols.reserve(part.size());
  bool unknown = false;  // pending: goes after the bytes of characters that follow it, as in Hugging Face tokenizers
  const auto put_unknown = [&] {
    if (unknown) symbols.push_back(*spec_->unk);
    unknown = false;
  };
  for (size_t at = 0; at < part.size();) {
    const std::string_view character = part.substr(at, character_length(part.substr(at)));
    at += character.size();
    if (const int32_t id = characters_.find(character); id >= 0) {
      put_unknown();
      symbols.push_back(id);
    } else if (std::all_of(character.begin(), character.end(),
                           [&](char byte) { return byte_token_[static_cast<uint8_t>(byte)] >= 0; })) {
      for (const char byte : character) symbols.push_back(byte_token_[static_cast<uint8_t>(byte)]);
    } else if (spec_->unk) {
      if (!spec_->fuse_unk) put_unknown();
      unknown = true;
    }
  }
  put_unknown();
  merge(symbols, out);
}

template <class First>
void Bpe::merge_any(size_t n, First first, std::vector<int32_t>& out) const {
  if (n <= kShortWord)
    merge_short(n, first, out);
  else
    merge_long(n, first, out);
}

// `first(i)` is symbol i before any merge.
template <class First>
void Bpe::merge_short(size_t n, First first, std::vector<int32_t>& out) const {
  std::array<int32_t, kShortWord> id;      // the symbols
  std::array<uint32_t, kShortWord> rank;   // of the pair (i, i + 1)
  std::array<int32_t, kShortWord> result;  // what the pair merges to
  const auto look_up = [&](size_t i) {
    const MergeTable::Entry& merge = merges_.find(id[i], id[i + 1]);
    rank[i] = merge.rank;
    result[i] = merge.result;
  };
  for (size_t i = 0; i < n; ++i) id[i] = first(i);
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

// A linked list of symbols, each with the merge that it allows with its right neighbour, and a heap of those merges.
// Obsolete entries stay in the heap; when popped, they are recognised by a rank that is no longer the symbol's. Entries
// are eight bytes, rank and position, because cache misses in the heap dominate the time for long words.
template <class First>
void Bpe::merge_long(size_t count, First first, std::vector<int32_t>& out) const {
  require<DataError>(count < INT32_MAX, "a pre-token of ", count,
                     " bytes is too long to encode; the limit is 2 GiB: break the text into shorter documents");
  struct Symbol {
    int32_t id, previous, next;         // at the end of the word, next is its length
    uint32_t rank = MergeTable::kNone;  // of the pair (this, next); kNone once merged into the left neighbour
    int32_t result = -1;                // what the pair merges to
  };
  const auto n = static_cast<int32_t>(count);
  std::vector<Symbol> symbols(count);
  std::vector<uint64_t> heap;  // rank << 32 | position, the smallest on top
  heap.reserve(count);
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
  for (int32_t i = 0; i < n; ++i) symbols[i] = {first(static_cast<size_t>(i)), i - 1, i + 1};
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
