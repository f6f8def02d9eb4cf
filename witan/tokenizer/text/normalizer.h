// Normalizers: what a tokenizer does to a text before splitting it, as in Hugging Face tokenizers.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace witan {

// One step of a normalizer, in the terms of a tokenizer.json.
struct NormalizerStep {
  enum class Kind { nfc, nfd, nfkc, nfkd, lowercase, strip, prepend, replace, precompiled, strip_accents, bert };
  Kind kind = Kind::nfc;
  std::string pattern = {};  // replace: the text or regular expression to match
  std::string content = {};  // prepend, replace: the new text; precompiled: the compiled character map (charsmap.h)
  bool regex = false;        // replace: `pattern` is a regular expression
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
