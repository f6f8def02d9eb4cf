// The most frequent runs of words of a corpus, in bounded memory: counters of Misra and Gries (1982), a median of which
// is taken off all of them whenever there are too many (Anderson et al., "A high-performance algorithm for identifying
// frequent items in data streams", 2017).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace witan {

struct FrequentNgram {
  std::string text;  // as it stands where it was seen second
  int64_t count = 0;
  bool operator==(const FrequentNgram&) const = default;
};

// Not thread-safe. The result depends on the order of the calls.
class FrequentNgrams {
 public:
  // `counters` is the most that it keeps, a power of two; each takes about 100 bytes.
  explicit FrequentNgrams(size_t counters = size_t{1} << 18);

  void add(uint64_t hash, std::string_view text);
  int64_t added() const { return added_; }

  // Counts are too small by at most this; 0: they are exact. Never above 2 * added / counters.
  int64_t error() const { return error_; }
  // The `most` of those that occur at least twice, the most frequent first, equal ones by their text.
  std::vector<FrequentNgram> most_frequent(size_t most) const;

 private:
  struct Counter {
    uint64_t hash = 0;
    int64_t count = 0;  // 0: it is free
  };

  size_t slot_of(uint64_t hash) const;
  void prune();

  size_t most_;
  std::vector<Counter> slots_;
  std::vector<std::string> texts_;  // by slot
  size_t used_ = 0;
  int64_t added_ = 0, error_ = 0;
};

}  // namespace witan
