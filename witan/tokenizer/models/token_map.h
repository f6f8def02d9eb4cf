// Maps bytes to token ids: a hash table of tokens that are stored elsewhere.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace witan {

// Open addressing, at most half full. Reading is thread-safe. `tokens` must outlive the map.
template <class Text>
class TextMap {
 public:
  explicit TextMap(const std::vector<Text>& tokens) : TextMap(tokens, tokens.size()) {}
  // Has room for `most` of the tokens.
  TextMap(const std::vector<Text>& tokens, size_t most) : tokens_(&tokens), slots_(std::bit_ceil(2 * most + 2)) {}

  // Adds tokens[id]. Returns false and changes nothing if an equal token is there already.
  bool insert(int32_t id) {
    const std::string_view token = (*tokens_)[static_cast<size_t>(id)];
    const uint64_t hash = hash_of(token);
    Slot& slot = slots_[place(token, hash)];
    if (slot.id >= 0) return false;
    slot = {static_cast<uint32_t>(hash >> 32), id};
    return true;
  }

  // The id of the token with these bytes, or -1.
  int32_t find(std::string_view bytes) const { return slots_[place(bytes, hash_of(bytes))].id; }

 private:
  struct Slot {
    uint32_t tag = 0;  // the upper half of the hash, so that most mismatches need no comparison of texts
    int32_t id = -1;
  };

  template <class Word>
  static uint64_t load(const char* p) {
    Word word;
    std::memcpy(&word, p, sizeof word);
    return word;
  }
  static uint64_t mix(uint64_t a, uint64_t b) {
    const uint64_t product = (a ^ b) * 0x9E3779B97F4A7C15u;
    return product ^ product >> 32;
  }
  static uint64_t hash_of(std::string_view s) {
    const char* p = s.data();
    const size_t n = s.size();
    uint64_t hash = mix(n, 0x243F6A8885A308D3u);
    if (n >= 8) {
      for (size_t i = 0; i + 8 < n; i += 8) hash = mix(hash, load<uint64_t>(p + i));
      return mix(hash, load<uint64_t>(p + n - 8));
    }
    if (n >= 4) return mix(hash, load<uint32_t>(p) << 32 | load<uint32_t>(p + n - 4));
    if (n == 0) return hash;
    return mix(hash, load<uint8_t>(p) << 16 | load<uint8_t>(p + n / 2) << 8 | load<uint8_t>(p + n - 1));
  }

  // The slot with these bytes, or the free slot for them.
  size_t place(std::string_view bytes, uint64_t hash) const {
    const size_t mask = slots_.size() - 1;
    for (size_t i = hash & mask;; i = (i + 1) & mask) {
      const Slot& slot = slots_[i];
      if (slot.id < 0 || (slot.tag == hash >> 32 && (*tokens_)[static_cast<size_t>(slot.id)] == bytes)) return i;
    }
  }

  const std::vector<Text>* tokens_;
  std::vector<Slot> slots_;
};

using TokenMap = TextMap<std::string>;

}  // namespace witan
