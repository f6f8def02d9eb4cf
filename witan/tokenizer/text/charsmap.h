// SentencePiece's compiled character maps (nmt_nfkc and its kin): a double-array trie of byte strings (Darts,
// https://github.com/s-yata/darts-clone) with the texts that replace them.
//
// Format: u32 bytes of the trie; the trie, u32 units; replacements, each ended by a zero byte. Little endian.
// Source: https://github.com/google/sentencepiece/blob/master/src/normalizer.cc
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace witan {

// Immutable: its methods may be called from several threads. Any bytes are safe: a damaged trie finds less.
class Charsmap {
 public:
  struct Rule {
    size_t length;  // bytes of the text that it replaces
    std::string_view becomes;
  };

  // Throws CorruptionError if `bytes` are shorter than they say, or the trie is not whole units.
  explicit Charsmap(std::string_view bytes);

  // The rule of the longest, or the shortest, beginning of `text` that has one.
  std::optional<Rule> longest(std::string_view text) const;
  std::optional<Rule> shortest(std::string_view text) const;

  // As Hugging Face's normalizer Precompiled: a grapheme cluster below 6 bytes becomes what the shortest rule for its
  // beginning says, and else each of its characters on its own.
  std::string normalize_graphemes(std::string_view text) const;

 private:
  std::optional<Rule> find(std::string_view text, bool first) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace witan
