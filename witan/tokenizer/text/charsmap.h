// SentencePiece's compiled character maps (nmt_nfkc and others): a double-array trie of byte strings (Darts,
// https://github.com/s-yata/darts-clone) with their replacements.
//
// Format, little endian: u32 size of the trie in bytes; the trie, u32 units; replacements, each ended by a zero byte.
// Source: https://github.com/google/sentencepiece/blob/master/src/normalizer.cc
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace witan {

// Immutable: its methods may be called from several threads. Any bytes are safe: a damaged trie merely finds less.
class Charsmap {
 public:
  struct Rule {
    size_t length;  // bytes of the text that it replaces
    std::string_view replacement;
  };

  // Throws CorruptionError if `bytes` is shorter than its header says, or the trie is not a whole number of units.
  explicit Charsmap(std::string_view bytes);

  // The rule for the longest, or the shortest, prefix of `text` that has one.
  std::optional<Rule> longest(std::string_view text) const;
  std::optional<Rule> shortest(std::string_view text) const;

  // Behaves as Hugging Face's normalizer Precompiled: a grapheme cluster of less than 6 bytes is replaced by the
  // shortest rule for its prefix; without one, each of its characters is replaced on its own.
  std::string normalize_graphemes(std::string_view text) const;

 private:
  std::optional<Rule> find(std::string_view text, bool first) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace witan
