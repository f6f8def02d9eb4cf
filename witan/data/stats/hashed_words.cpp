#include "witan/data/stats/hashed_words.h"

#include <array>
#include <cassert>

#include "witan/data/dedup/words.h"

namespace witan {
namespace {

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
