// Unicode normalization form C (UAX #15, https://unicode.org/reports/tr15), through utf8proc, for the characters of
// Unicode 9.0: Hugging Face tokenizers leaves all newer characters unchanged.
#pragma once

#include <string>
#include <string_view>

namespace witan {

// False if a quick check shows that `text` is already normalized: it has no character from U+0300 on.
bool may_change_under_nfc(std::string_view text);

// Text that is not valid UTF-8 is returned unchanged.
std::string to_nfc(std::string_view text);

}  // namespace witan
