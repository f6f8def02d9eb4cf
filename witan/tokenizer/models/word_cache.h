// Tables from words to tokens: words that a thread has encoded before, and words that are a single token.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace witan {

// The bytes of a word, padded with zeros, and its length, to be compared and hashed 8 bytes at a time.
template <size_t kNumbers>
struct WordKey {
  static constexpr size_t kLongest = 8 * kNumbers - 1;  // bytes

  // The key of a word of at most kLongest bytes; `readable` bytes from its first one on may be read.
  static WordKey of(std::string_view word, size_t readable) {
    WordKey key;
    if (readable >= sizeof key) {
      std::memcpy(key.numbers.data(), word.data(), sizeof key);
      const char* const mask = kMask.data() + sizeof key - word.size();
      for (size_t i = 0; i < kNumbers; ++i) key.numbers[i] &= load(mask + 8 * i);
    } else {
      key.numbers = {};
      std::memcpy(key.numbers.data(), word.data(), word.size());
    }
    key.numbers[kNumbers - 1] |= uint64_t{word.size()} << 56;
    return key;
  }

  uint64_t hash() const {
    uint64_t hash = 0;
    for (size_t i = 0; i < kNumbers; i += 2) {
      __extension__ using Wide = unsigned __int128;
      const Wide product = Wide{numbers[i] ^ 0x9E3779B97F4A7C15u} * Wide{numbers[i + 1] ^ 0xD6E8FEB86659FD93u};
      hash = std::rotl(hash, 23) ^ static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
    }
    return hash;
  }

  bool operator==(const WordKey& other) const {
    uint64_t differences = 0;
    for (size_t i = 0; i < kNumbers; ++i) differences |= numbers[i] ^ other.numbers[i];
    return differences == 0;
  }

  std::array<uint64_t, kNumbers> numbers;

 private:
  static constexpr std::array<char, 16 * kNumbers> kMask = [] {
    std::array<char, 16 * kNumbers> mask{};
    for (size_t i = 0; i < 8 * kNumbers; ++i) mask[i] = '\xFF';
    return mask;
  }();
  static uint64_t load(const char* p) {
    uint64_t number;
    std::memcpy(&number, p, sizeof number);
    return number;
  }
};

// A table of fixed size in which new words replace the oldest of their bucket: few distinct words make up most of a
// text. Several owners (tokenizers) share it.
template <size_t kNumbers, int kBits>
class WordTable {
 public:
  using Key = WordKey<kNumbers>;
  static constexpr size_t kMostTokens = 2 * kNumbers - 1;

  struct Entry {
    std::span<const int32_t> tokens() const { return {ids.data(), owner_and_count & 15}; }

    Key key = {};
    std::array<int32_t, kMostTokens> ids = {};
    uint32_t owner_and_count = 0;  // no owner is 0
  };
  static_assert(sizeof(Entry) == 16 * kNumbers);

  // The bucket of a word; fetch() prefetches it.
  size_t place(const Key& key) const { return key.hash() >> (64 - kBits) & ~size_t{1}; }
  void fetch(size_t place) const {
    __builtin_prefetch(&entries_[place]);
    if constexpr (sizeof(Entry) > 32) __builtin_prefetch(&entries_[place + 1]);
  }

  // Returns nullptr if the word is not there.
  const Entry* find(size_t place, const Key& key, uint32_t owner) const {
    const Entry* const entry = &entries_[place];
    const auto is = [&](const Entry& one) { return one.key == key && one.owner_and_count >> 4 == owner; };
    if (is(entry[0])) return entry;
    return is(entry[1]) ? entry + 1 : nullptr;
  }
  // `ids` must hold 1 to kMostTokens tokens.
  void put(size_t place, const Key& key, uint32_t owner, std::span<const int32_t> ids) {
    Entry* const entry = &entries_[place];
    entry[1] = entry[0];
    entry->key = key;
    entry->owner_and_count = owner << 4 | static_cast<uint32_t>(ids.size());
    std::copy(ids.begin(), ids.end(), entry->ids.begin());
  }

 private:
  // mmap: untouched pages take no memory, and the pages of a thread that ends are returned at once.
  static constexpr size_t kBytes = sizeof(Entry) << kBits;
  struct Unmap {
    void operator()(Entry* entries) const { ::munmap(entries, kBytes); }
  };
  static Entry* map_zeros() {
    void* const memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    return static_cast<Entry*>(memory);  // a zeroed entry belongs to no owner
  }
  std::unique_ptr<Entry[], Unmap> entries_{map_zeros()};
};

// One thread's cache, at most 3 MiB.
struct WordCache {
  static WordCache& of_this_thread();
  // A number that identifies a tokenizer: 28 bits, not 0.
  static uint32_t new_owner();

  WordTable<2, 16> short_words;  // up to 15 bytes and 3 tokens
  WordTable<4, 14> long_words;   // up to 31 bytes and 7 tokens
};

// Words of up to 15 bytes that are a single token. Immutable.
class ShortTokens {
 public:
  using Key = WordKey<2>;

  // Holds those tokens with these ids that have at most 15 bytes.
  ShortTokens(const std::vector<std::string>& tokens, const std::vector<int32_t>& ids);
  // The id of the token, or -1.
  int32_t find(const Key& key) const { return entries_[place(key)].id; }
  void fetch(const Key& key) const { __builtin_prefetch(&entries_[key.hash() >> shift_]); }

 private:
  struct Entry {
    Key key;
    int32_t id = -1;
  };
  size_t place(const Key& key) const {
    for (size_t i = key.hash() >> shift_;; i = (i + 1) & (entries_.size() - 1))
      if (entries_[i].id < 0 || entries_[i].key == key) return i;
  }

  int shift_;
  std::vector<Entry> entries_;  // at most half full
};

inline WordCache& WordCache::of_this_thread() {
  static thread_local WordCache cache;
  return cache;
}

inline uint32_t WordCache::new_owner() {
  static std::atomic<uint32_t> owners{0};
  constexpr uint32_t kMost = (uint32_t{1} << 28) - 1;
  return 1 + owners.fetch_add(1, std::memory_order_relaxed) % kMost;
}

inline ShortTokens::ShortTokens(const std::vector<std::string>& tokens, const std::vector<int32_t>& ids)
    : shift_(64 - std::bit_width(2 * ids.size() + 1)), entries_(size_t{1} << (64 - shift_)) {
  constexpr size_t kAhead = 16;  // number of tokens that are prefetched
  std::array<Entry, kAhead> next;
  size_t count = 0;
  const auto put = [&] {
    for (const Entry& one : std::span(next).first(count))
      if (Entry& entry = entries_[place(one.key)]; entry.id < 0) entry = one;
    count = 0;
  };
  for (const int32_t id : ids) {
    const std::string& token = tokens[static_cast<size_t>(id)];
    if (token.size() > Key::kLongest) continue;
    next[count] = {Key::of(token, token.size()), id};
    fetch(next[count].key);
    if (++count == kAhead) put();
  }
  put();
}

}  // namespace witan
