// What a tokenizer does to a text before it splits it: the normalizers of Hugging Face's tokenizers.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "witan/tokenizer/models/tokenizer_spec.h"

namespace witan {

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
