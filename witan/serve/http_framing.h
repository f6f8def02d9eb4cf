// Determines where a request ends and the next one begins, by the rules of RFC 9112 on which servers and proxies must
// agree. Violations are refused, never repaired: a request that two programs divide differently lets one client act for
// another (request smuggling). Also the compression of answers. Independent of sockets.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace witan::serve {

// Finds the end of a request's head incrementally. Lines must end with CRLF (section 2.2), no line is folded
// (5.2), and there are no control characters; empty lines before the request are skipped (2.2).
class HeadScanner {
 public:
  enum class State { more, complete, malformed };

  // `bytes` is everything received since the end of the last request.
  State scan(std::string_view bytes);

  size_t begin() const { return begin_; }  // of the request line
  size_t end() const { return done_; }     // of the head, with its empty line, once it is complete
  const char* error() const { return error_; }

 private:
  State refuse(const char* error) {
    error_ = error;
    return State::malformed;
  }

  size_t begin_ = 0, done_ = 0;  // `done_`: bytes scanned so far
  size_t line_ = 0;              // start of the current line
  bool after_cr_ = false;
  const char* error_ = "";
};

// The header lines that determine the length of the body and the addressed host, as sent.
struct FramingLines {
  bool is_1_0 = false;  // HTTP/1.0
  std::vector<std::string_view> hosts = {}, lengths = {}, encodings = {};
};

struct Refusal {
  int status;
  std::string message;
};

// Returns why the head must be refused, if so; the connection must then be closed (sections 3.2, 6.1, 6.3). A body has
// one Content-Length, or the transfer coding `chunked` only, or is empty.
std::optional<Refusal> framing_error(const FramingLines& lines);

// Splits a request target into its parts (sections 3.2.1, 3.2.2 and 3.2.4). Returns nothing for any other form.
struct RequestTarget {
  std::string_view path, query;
  std::optional<std::string_view> host;  // of a target that is a whole URL; replaces the Host line
};
std::optional<RequestTarget> split_target(std::string_view target);

// Whether this Accept-Encoding accepts gzip (RFC 9110, sections 8.4.1.3 and 12.5.3): it lists gzip, or else `*`, with a
// quality above 0.
bool accepts_gzip(std::string_view accept_encoding);

// The text as one gzip member (RFC 1952), compressed fast rather than well.
std::string gzip(std::string_view text);

}  // namespace witan::serve
