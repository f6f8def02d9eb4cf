// Where a request ends and the next one begins: the rules of RFC 9112 by which servers and proxies on the way agree on
// it. What breaks them is refused, never repaired, because a request that two programs divide differently lets one
// client speak in another's name (request smuggling). Knows no sockets.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace witan::serve {

// Finds the end of a request's head in bytes as they come. Lines end with CRLF alone (section 2.2), no line is folded
// (5.2), and there are no control characters; empty lines before the request are skipped (2.2).
class HeadScanner {
 public:
  enum class State { more, complete, malformed };

  // `bytes`: all that has come since the end of the last request.
  State scan(std::string_view bytes);

  size_t begin() const { return begin_; }  // of the request line
  size_t end() const { return done_; }     // of the head, with its empty line, once it is complete
  const char* error() const { return error_; }

 private:
  State refuse(const char* error) {
    error_ = error;
    return State::malformed;
  }

  size_t begin_ = 0, done_ = 0;  // `done_`: bytes that were looked at
  size_t line_ = 0;              // where the present line begins
  bool after_cr_ = false;
  const char* error_ = "";
};

// The lines of a head that decide how long its body is and whom it is for, each as it was sent.
struct FramingLines {
  bool is_1_0 = false;  // HTTP/1.0
  std::vector<std::string_view> hosts = {}, lengths = {}, encodings = {};
};

struct Refusal {
  int status;
  std::string message;
};

// Whether the head must be refused, after which the connection must be closed (sections 3.2, 6.1, 6.3). Bodies have one
// Content-Length, or the transfer coding `chunked` alone, or are empty.
std::optional<Refusal> framing_error(const FramingLines& lines);

// Splits a request target into its parts (sections 3.2.1, 3.2.2 and 3.2.4). Returns nothing for any other form.
struct RequestTarget {
  std::string_view path, query;
  std::optional<std::string_view> host;  // of a target that is a whole URL, where it stands for the Host line
};
std::optional<RequestTarget> split_target(std::string_view target);

}  // namespace witan::serve
