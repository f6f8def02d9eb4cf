// Unicode normalization form C (UAX #15, https://unicode.org/reports/tr15), through utf8proc, of the characters of
// Unicode 9.0: Hugging Face tokenizers knows no others, and leaves those as they are.
#pragma once

#include <string>
#include <string_view>

namespace witan {

// False when `text` is its own normalization form C at a glance: no character from U+0300 on.
bool may_change_under_nfc(std::string_view text);

// Text that is not valid UTF-8 comes back as it is.
std::string to_nfc(std::string_view text);

}  // namespace witan
