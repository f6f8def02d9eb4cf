// Normalizers: what a tokenizer does to a text before splitting it, as in Hugging Face tokenizers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace witan {

// SentencePiece's compiled character maps (nmt_nfkc and others): a double-array trie of byte strings (Darts,
// https://github.com/s-yata/darts-clone) with their replacements.
//
// Format, little endian: u32 size of the trie in bytes; the trie, u32 units; replacements, each ended by a zero byte.
// Source: https://github.com/google/sentencepiece/blob/master/src/normalizer.cc
//
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

// One step of a normalizer, in the terms of a tokenizer.json.
struct NormalizerStep {
  enum class Kind { nfc, nfd, nfkc, nfkd, lowercase, strip, prepend, replace, precompiled, strip_accents, bert };
  Kind kind = Kind::nfc;
  std::string pattern = {};        // replace: the text or regular expression to match
  std::string content = {};        // prepend, replace: the new text; precompiled: the compiled character map (Charsmap)
  bool regex = false;              // replace: `pattern` is a regular expression
  bool left = true, right = true;  // strip: at which ends
  // bert: removes control characters, puts spaces around Chinese characters, strips accents, converts to lower case
  bool clean = false, chinese = false, accents = false, lower = false;
  bool operator==(const NormalizerStep&) const = default;
};

// Applies the steps in order. Immutable: its methods may be called from several threads.
class Normalizer {
 public:
  // Throws DataError for a regular expression that does not compile, and CorruptionError for a damaged character map.
  explicit Normalizer(const std::vector<NormalizerStep>& steps);
  ~Normalizer();
  Normalizer(Normalizer&&) noexcept;

  // False if a quick check shows that the text is already normalised.
  bool may_change(std::string_view text) const;
  std::string operator()(std::string_view text) const;
  // Also maps `beginning`, the number of bytes of the text that belong to its first character, to the number of bytes
  // of the result that come from that character.
  std::string operator()(std::string_view text, size_t& beginning) const;

 private:
  struct Step;
  std::vector<Step> steps_;
};

// Unicode normalization form C (UAX #15, https://unicode.org/reports/tr15) of the characters of Unicode 9.0, through
// utf8proc. Newer characters stay unchanged, as in Hugging Face tokenizers.

// False if a quick check shows that `text` is already normalized (UAX #15, section 9).
bool may_change_under_nfc(std::string_view text);

// Text that is not valid UTF-8 is returned unchanged.
std::string to_nfc(std::string_view text);

}  // namespace witan
