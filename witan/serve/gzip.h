// Compression of answers for clients that accept it (RFC 9110, sections 8.4.1.3 and 12.5.3).
#pragma once

#include <string>
#include <string_view>

namespace witan::serve {

// Whether this Accept-Encoding accepts gzip: it lists gzip, or else `*`, with a quality above 0.
bool accepts_gzip(std::string_view accept_encoding);

// The text as one gzip member (RFC 1952), compressed fast rather than well.
std::string gzip(std::string_view text);

}  // namespace witan::serve
