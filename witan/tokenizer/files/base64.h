// Base64 (RFC 4648, section 4): how files of tokenizers write bytes as text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace witan {

// Returns nullopt for text that is not complete, padded base64.
std::optional<std::string> from_base64(std::string_view text);
std::string to_base64(std::string_view bytes);

}  // namespace witan
