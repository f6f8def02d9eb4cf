#include "witan/tokenizer/models/word_batch.h"

#include <algorithm>
#include <cstring>

namespace witan {

std::span<NewWord> WordBatch::look_up(const Pieces& words, const ShortTokens& tokens) {
  look_up_short(words, tokens);
  look_up_missing(tokens);
  make_room();
  return new_;
}

// Each step prefetches what the next one reads.
void WordBatch::look_up_short(const Pieces& words, const ShortTokens& tokens) {
  count_ = missing_count_ = 0;
  words.each([&](std::string_view text) {
    Word& word = words_[count_++];
    word.ids = nullptr;
    word.count = 0;
    if (text.size() > ShortKey::kLongest) return;
    word.key = ShortKey::of(text, static_cast<size_t>(words.readable_end - text.data()));
    word.place = cache_->short_words.place(word.key);
    cache_->short_words.fetch(word.place);
  });
  size_t i = 0;
  words.each([&](std::string_view text) {
    Word& word = words_[i++];
    const bool is_short = text.size() <= ShortKey::kLongest;
    if (const auto* known = is_short ? cache_->short_words.find(word.place, word.key, owner_) : nullptr) {
      word.ids = known->ids.data();
      word.count = known->tokens().size();
      return;
    }
    Missing& one = missing_[missing_count_++];
    one.index = i - 1;
    one.text = text;
    one.new_word = kNone;
    one.id = -1;
    if (is_short) tokens.fetch(word.key);
    if (text.size() > LongKey::kLongest) return;
    one.key = LongKey::of(text, static_cast<size_t>(words.readable_end - text.data()));
    one.place = cache_->long_words.place(one.key);
    cache_->long_words.fetch(one.place);
  });
}

void WordBatch::look_up_missing(const ShortTokens& tokens) {
  const std::span<Missing> missing = std::span(missing_).first(missing_count_);
  new_.clear();
  for (Missing& one : missing) {
    Word& word = words_[one.index];
    if (one.text.size() <= ShortKey::kLongest) one.id = tokens.find(word.key);
    if (one.id >= 0) {
      word.ids = &one.id;
      word.count = 1;
      continue;
    }
    const auto* known =
        one.text.size() <= LongKey::kLongest ? cache_->long_words.find(one.place, one.key, owner_) : nullptr;
    if (known) {
      word.ids = known->ids.data();
      word.count = known->tokens().size();
    } else {
      one.new_word = new_.size();
      new_.push_back({one.text, nullptr});
    }
  }
}

void WordBatch::make_room() {
  size_t size = 0;
  for (const NewWord& word : new_) size += word.text.size();
  if (size > room_size_) {
    room_.reset(new int32_t[size]);
    room_size_ = size;
  }
  int32_t* free = room_.get();
  for (NewWord& word : new_) {
    word.tokens = free;
    free += word.text.size();
  }
}

void WordBatch::append_to(std::vector<int32_t>& out) {
  for (const Missing& one : std::span(missing_).first(missing_count_)) {
    if (one.new_word == kNone) continue;
    words_[one.index].ids = new_[one.new_word].tokens;
    words_[one.index].count = new_[one.new_word].count;
  }
  const std::span<const Word> words = std::span(words_).first(count_);
  const size_t before = out.size();
  size_t total = before;
  for (const Word& word : words) total += word.count;
  constexpr size_t kMostShort = decltype(cache_->short_words)::kMostTokens;
  out.resize(total + kMostShort);
  int32_t* to = out.data() + before;
  size_t next_missing = 0;
  for (size_t i = 0; i < count_; ++i) {
    const Word& word = words[i];
    if (next_missing < missing_count_ && missing_[next_missing].index == i) {
      ++next_missing;
      std::copy_n(word.ids, word.count, to);
    } else {
      std::memcpy(to, word.ids,
                  kMostShort * sizeof *to);  // a copy of fixed size is faster; ids beyond the last are overwritten
    }
    to += word.count;
  }
  out.resize(total);
  keep();
}

void WordBatch::keep() {
  for (const Missing& one : std::span(missing_).first(missing_count_)) {
    const Word& word = words_[one.index];
    const std::span<const int32_t> ids(word.ids, word.count);
    if (ids.empty()) continue;
    if (one.text.size() <= ShortKey::kLongest && ids.size() <= decltype(cache_->short_words)::kMostTokens)
      cache_->short_words.put(word.place, word.key, owner_, ids);
    else if (one.new_word != kNone && one.text.size() <= LongKey::kLongest &&
             ids.size() <= decltype(cache_->long_words)::kMostTokens)
      cache_->long_words.put(one.place, one.key, owner_, ids);
  }
}

}  // namespace witan
