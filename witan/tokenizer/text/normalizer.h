// What a tokenizer does to a text before it splits it: the normalizers of Hugging Face's tokenizers.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace witan {

// One step of the normalizer, in Hugging Face's terms.
struct NormalizerStep {
  enum class Kind { nfc, nfd, nfkc, nfkd, lowercase, strip, prepend, replace, precompiled, strip_accents, bert };
  Kind kind = Kind::nfc;
  std::string pattern = {};        // replace: a text, or a regular expression
  std::string content = {};        // prepend, replace: the new text; precompiled: the character map (charsmap.h)
  bool regex = false;              // replace: what `pattern` is
  bool left = true, right = true;  // strip: which ends
  // bert: removes control characters, puts spaces around Chinese characters, removes accents, writes lower case
  bool clean = false, chinese = false, accents = false, lower = false;
  bool operator==(const NormalizerStep&) const = default;
};

// The steps of a normalizer, one after the other. Immutable: its methods may be called from several threads.
class Normalizer {
 public:
  // Throws DataError for a regular expression that does not compile, and CorruptionError for a damaged character map.
  explicit Normalizer(const std::vector<NormalizerStep>& steps);
  ~Normalizer();
  Normalizer(Normalizer&&) noexcept;

  // False if a quick check shows that the text stays as it is.
  bool may_change(std::string_view text) const;
  std::string operator()(std::string_view text) const;
  // Also turns `beginning`, how many bytes of the text belong to its first character, into how many of the result come
  // from that.
  std::string operator()(std::string_view text, size_t& beginning) const;

 private:
  struct Step;
  std::vector<Step> steps_;
};

// Unicode normalization form C (UAX #15, https://unicode.org/reports/tr15), through utf8proc, for the characters of
// Unicode 9.0: Hugging Face tokenizers leaves all newer characters unchanged.

// False if a quick check shows that `text` is already normalized (UAX #15, section 9).
bool may_change_under_nfc(std::string_view text);

// Text that is not valid UTF-8 is returned unchanged.
std::string to_nfc(std::string_view text);

}  // namespace witan
