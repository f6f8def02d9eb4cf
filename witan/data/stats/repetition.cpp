#include "witan/data/stats/repetition.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <vector>

#include "witan/data/dedup/words.h"

namespace witan {
namespace {

// Counts hashes; memory is kept from one use to the next.
class HashCounts {
 public:
  // Forgets everything, and makes room for so many hashes.
  void begin(size_t most) {
    const size_t slots = std::bit_ceil(2 * most + 2);
    if (slots > slots_.size()) slots_.assign(slots, {});
    mask_ = slots - 1;
    ++round_;
    order_.clear();
  }

  // How often it has been added, with this time.
  uint32_t add(uint64_t hash) {
    size_t at = hash & mask_;
    while (slots_[at].round == round_ && slots_[at].hash != hash) at = (at + 1) & mask_;
    Slot& slot = slots_[at];
    if (slot.round != round_) {
      slot = {hash, round_, 0};
      order_.push_back(static_cast<uint32_t>(at));
    }
    return ++slot.count;
  }

  // The number, by first occurrence, of the most frequent hash, the first of equal ones; and how often it was added.
  std::pair<size_t, uint32_t> most_frequent() const {
    std::pair<size_t, uint32_t> most{0, 0};
    for (size_t i = 0; i < order_.size(); ++i)
      if (slots_[order_[i]].count > most.second) most = {i, slots_[order_[i]].count};
    return most;
  }

 private:
  struct Slot {
    uint64_t hash = 0;
    uint32_t round = 0, count = 0;
  };
  std::vector<Slot> slots_;
  std::vector<uint32_t> order_;  // of slots, as they were filled
  size_t mask_ = 0;
  uint32_t round_ = 0;
};

int64_t characters_in(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

struct Repeated {
  double parts = 0, characters = 0;  // shares
};

// Repetition among the parts between runs of at least `ends` line ends.
Repeated repeated_parts(std::string_view text, size_t ends, int64_t characters, HashCounts& counts) {
  counts.begin(static_cast<size_t>(std::count(text.begin(), text.end(), '\n')) + 1);
  int64_t parts = 0, duplicates = 0, repeated = 0;
  for (size_t begin = std::min(text.find_first_not_of('\n'), text.size()); begin < text.size();) {
    size_t end = text.find('\n', begin), next = end;
    for (; end != text.npos; end = text.find('\n', next)) {
      next = std::min(text.find_first_not_of('\n', end), text.size());
      if (next - end >= ends || next == text.size()) break;
    }
    if (end == text.npos) end = next = text.size();
    if (end > begin) {
      const std::string_view part = text.substr(begin, end - begin);
      ++parts;
      if (counts.add(XXH3_64bits(part.data(), part.size())) > 1) {
        ++duplicates;
        repeated += characters_in(part);
      }
    }
    begin = next;
  }
  return {static_cast<double>(duplicates) / static_cast<double>(std::max<int64_t>(parts, 1)),
          static_cast<double>(repeated) / static_cast<double>(std::max<int64_t>(characters, 1))};
}

// Characters in the most frequent run of `n` words, blanks between words included.
int64_t most_frequent_run(const HashedWords& words, size_t n, HashCounts& counts) {
  if (words.size() < n) return 0;
  counts.begin(words.size());
  std::vector<uint32_t> firsts;  // where each different run occurs first
  for (size_t i = 0; i + n <= words.size(); ++i)
    if (counts.add(words.hash(i, n)) == 1) firsts.push_back(static_cast<uint32_t>(i));
  const auto [run, times] = counts.most_frequent();
  return (words.characters(firsts[run], n) + static_cast<int64_t>(n) - 1) * times;
}

// Characters of runs of `n` words that occurred before.
int64_t duplicate_runs(const HashedWords& words, size_t n, HashCounts& counts) {
  counts.begin(words.size());
  int64_t repeated = 0;
  for (size_t i = 0; i + n <= words.size();)
    if (counts.add(words.hash(i, n)) > 1) {
      repeated += words.characters(i, n);
      i += n;
    } else {
      ++i;
    }
  return repeated;
}

constexpr uint64_t kWordFactor = 0x9E3779B97F4A7C15, kRunFactor = 0xD6E8FEB86659FD93;  // odd
constexpr size_t kLongestRun = 16;

uint64_t scrambled(uint64_t x) {  // the finalizer of MurmurHash3
  x = (x ^ x >> 33) * 0xFF51AFD7ED558CCD;
  x = (x ^ x >> 33) * 0xC4CEB9FE1A85EC53;
  return x ^ x >> 33;
}

constexpr std::array<uint64_t, kLongestRun + 1> powers_of_run_factor() {
  std::array<uint64_t, kLongestRun + 1> powers{1};
  for (size_t i = 1; i < powers.size(); ++i) powers[i] = powers[i - 1] * kRunFactor;
  return powers;
}
constexpr auto kRunPowers = powers_of_run_factor();

}  // namespace

RepetitionShares measure_repetition(std::string_view text, int64_t characters, const HashedWords& words) {
  thread_local HashCounts counts;
  RepetitionShares shares{};
  const Repeated lines = repeated_parts(text, 1, characters, counts);
  const Repeated paragraphs = repeated_parts(text, 2, characters, counts);
  shares = {lines.parts, paragraphs.parts, lines.characters, paragraphs.characters};
  const auto share_of_text = [&](int64_t some) {
    return static_cast<double>(some) / static_cast<double>(std::max<int64_t>(characters, 1));
  };
  for (size_t n = 2; n <= 4; ++n) shares[n + 2] = share_of_text(most_frequent_run(words, n, counts));
  for (size_t n = 5; n <= 10; ++n) shares[n + 2] = share_of_text(duplicate_runs(words, n, counts));
  return shares;
}

HashedWords::HashedWords(std::string_view text) : text_(text), prefixes_{0}, letters_{0} {
  const CharacterRole* roles = character_roles().data();
  uint64_t hash = 0;
  uint32_t letters = 0;  // of the word that goes on
  size_t begin = 0;
  const auto end_word = [&](size_t end) {
    if (letters == 0) return;
    begins_.push_back(static_cast<uint32_t>(begin));
    ends_.push_back(static_cast<uint32_t>(end));
    prefixes_.push_back(prefixes_.back() * kRunFactor + scrambled(hash + letters));
    letters_.push_back(letters_.back() + letters);
    hash = letters = 0;
  };
  for (size_t at = 0; at < text.size();) {
    const size_t before = at;
    const int32_t character = next_character(text, at);
    const CharacterRole role = roles[character];
    if (role != CharacterRole::joins) end_word(before);
    if (role == CharacterRole::separator) continue;
    if (letters == 0) begin = before;
    hash = (hash ^ static_cast<uint64_t>(lower_case(character))) * kWordFactor;
    hash ^= hash >> 29;
    ++letters;
    if (role == CharacterRole::alone) end_word(at);
  }
  end_word(text.size());
}

uint64_t HashedWords::hash(size_t first, size_t count) const {
  assert(count <= kLongestRun);
  return scrambled(prefixes_[first + count] - prefixes_[first] * kRunPowers[count]);
}

}  // namespace witan
