// The words of a text (data/dedup/words.h, in lower case) as hashes, of which the hash of any run follows at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace witan {

// Of valid UTF-8 below 4 GiB, which must outlive it. Runs of the same words have the same hash, others practically
// never (64 bits; polynomial hashing of Karp and Rabin, 1987).
class HashedWords {
 public:
  explicit HashedWords(std::string_view text);

  size_t size() const { return begins_.size(); }
  uint64_t hash(size_t first, size_t count) const;
  // Of the words alone, without what stands between them.
  int64_t characters(size_t first, size_t count) const { return letters_[first + count] - letters_[first]; }
  // From the first word to the end of the last.
  std::string_view text(size_t first, size_t count) const {
    return text_.substr(begins_[first], ends_[first + count - 1] - begins_[first]);
  }

 private:
  std::string_view text_;
  std::vector<uint32_t> begins_, ends_;  // of each word, in bytes
  std::vector<uint64_t> prefixes_;       // hash of all words before each, and of all
  std::vector<uint32_t> letters_;        // characters of all words before each, and of all
};

}  // namespace witan
