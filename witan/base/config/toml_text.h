// Rewrites untrusted TOML before toml++ 3.3 parses it. The parser's behaviour is undefined for some letters
// (its tables of white space have gaps), and it recurses once for every part of a dotted key; both were found by
// fuzzing.
#pragma once

#include <string>
#include <string_view>

namespace witan {

// The document (TOML 1.0, toml.io/en/v1.0.0) in ASCII only: strings become basic strings with \U escapes, letters
// of comments become "?". Lines stay where they are. `source` names the text in errors.
// Throws ConfigError where the text is not UTF-8, where TOML does not allow a character beyond ASCII, and for keys of
// very many parts; other errors are left to the parser.
std::string ascii_toml(std::string_view toml, std::string_view source);

}  // namespace witan
