// Words with their tokens: those that a thread has encoded before, and those that are a token.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <array>
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

// The bytes of a word, zeros, and its length: to compare, and to hash, 8 bytes at a time.
template <size_t kNumbers>
struct WordKey {
  static constexpr size_t kLongest = 8 * kNumbers - 1;  // bytes

  // Of a word of at most kLongest bytes; `readable` bytes from its first may be read.
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

// A table of fixed size in which a word takes the place of others that were there longer: most of a text is made of few
// words. Its words are those of several owners (tokenizers).
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

  // The place of a word; fetch() brings it into the processor's cache.
  size_t place(const Key& key) const { return key.hash() >> (64 - kBits) & ~size_t{1}; }
  void fetch(size_t place) const {
    __builtin_prefetch(&entries_[place]);
    if constexpr (sizeof(Entry) > 32) __builtin_prefetch(&entries_[place + 1]);
  }

  // nullptr: it is not there.
  const Entry* find(size_t place, const Key& key, uint32_t owner) const {
    const Entry* const entry = &entries_[place];
    const auto is = [&](const Entry& one) { return one.key == key && one.owner_and_count >> 4 == owner; };
    if (is(entry[0])) return entry;
    return is(entry[1]) ? entry + 1 : nullptr;
  }
  // For 1 to kMostTokens tokens.
  void put(size_t place, const Key& key, uint32_t owner, std::span<const int32_t> ids) {
    Entry* const entry = &entries_[place];
    entry[1] = entry[0];
    entry->key = key;
    entry->owner_and_count = owner << 4 | static_cast<uint32_t>(ids.size());
    std::copy(ids.begin(), ids.end(), entry->ids.begin());
  }

 private:
  // Pages that no word was put in take no memory, and those of a thread that ends are the system's at once.
  static constexpr size_t kBytes = sizeof(Entry) << kBits;
  struct Unmap {
    void operator()(Entry* entries) const { ::munmap(entries, kBytes); }
  };
  static Entry* map_zeros() {
    void* const memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    return static_cast<Entry*>(memory);  // zeros are an entry that nobody owns
  }
  std::unique_ptr<Entry[], Unmap> entries_{map_zeros()};
};

// What a thread keeps: 3 MiB at most.
struct WordCache {
  static WordCache& of_this_thread();
  // What tells tokenizers apart: of 28 bits, and not 0.
  static uint32_t new_owner();

  WordTable<2, 16> short_words;  // of up to 15 bytes and 3 tokens
  WordTable<4, 14> long_words;   // of up to 31 bytes and 7 tokens
};

// Words of up to 15 bytes that are a token. Immutable.
class ShortTokens {
 public:
  using Key = WordKey<2>;

  // Of the tokens with these ids whose bytes are at most 15.
  ShortTokens(const std::vector<std::string>& tokens, const std::vector<int32_t>& ids);
  // The id, or -1.
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

}  // namespace witan
