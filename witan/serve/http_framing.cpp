#include "witan/serve/http_framing.h"

#include <zlib.h>

#include <algorithm>
#include <limits>
#include <new>
#include <optional>
#include <stdexcept>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan::serve {
namespace {

bool is_alphanumeric(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// uri-host [":" port], of RFC 3986's characters; it may be empty.
bool is_host(std::string_view host) {
  return std::ranges::all_of(host, [](char c) {
    return is_alphanumeric(c) || std::string_view("-._~%!$&'()*+,;=:[]").find(c) != std::string_view::npos;
  });
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") + 1 - first);
}

bool equals_ignoring_case(std::string_view a, std::string_view lower) {
  return std::ranges::equal(a, lower, {}, [](char c) { return c >= 'A' && c <= 'Z' ? char(c + ('a' - 'A')) : c; });
}

// A token (RFC 9110, 5.6.2), perhaps with parameters: it may name a coding.
bool names_coding(std::string_view element) {
  const std::string_view name = trimmed(element.substr(0, element.find(';')));
  return !name.empty() && std::ranges::all_of(name, [](char c) {
    return is_alphanumeric(c) || std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
  });
}

std::optional<Refusal> encoding_error(const std::vector<std::string_view>& lines) {
  std::vector<std::string_view> codings;
  for (std::string_view line : lines)
    for (bool more = true; more;) {
      const size_t comma = line.find(',');
      codings.push_back(trimmed(line.substr(0, comma)));
      more = comma != std::string_view::npos;
      if (more) line.remove_prefix(comma + 1);
    }
  const auto is_chunked = [](std::string_view coding) { return equals_ignoring_case(coding, "chunked"); };
  if (!is_chunked(codings.back()))
    return Refusal{400, "a request's Transfer-Encoding must end with chunked: the end of its body is not known"};
  codings.pop_back();
  if (codings.empty()) return {};
  if (std::ranges::any_of(codings, is_chunked) || !std::ranges::all_of(codings, names_coding))
    return Refusal{400, "Transfer-Encoding must be a list of codings with chunked once, at its end"};
  return Refusal{
      501, cat("the transfer coding ", clipped(std::string(codings[0])), " is not supported: send chunked alone")};
}

}  // namespace

HeadScanner::State HeadScanner::scan(std::string_view bytes) {
  while (done_ < bytes.size()) {
    const char c = bytes[done_];
    const bool line_begins = done_ == line_;
    if (after_cr_ && c != '\n') return refuse("CR without LF");
    if (c == '\n' && !after_cr_) return refuse("a line must end with CRLF, not with LF alone");
    if (line_begins && line_ > begin_ && (c == ' ' || c == '\t')) return refuse("folded header lines are obsolete");
    if ((static_cast<unsigned char>(c) < ' ' && c != '\t' && c != '\r' && c != '\n') || c == '\x7f')
      return refuse("a control character in the header");
    ++done_;
    after_cr_ = c == '\r';
    if (c != '\n') continue;
    const bool empty = done_ - line_ == 2, before_request = line_ == begin_;
    line_ = done_;
    if (empty && !before_request) return State::complete;
    if (empty) begin_ = done_;
  }
  return State::more;
}

std::optional<Refusal> framing_error(const FramingLines& lines) {
  if (lines.hosts.size() > 1) return Refusal{400, "the request has several Host lines"};
  if (lines.hosts.empty() && !lines.is_1_0) return Refusal{400, "a request of HTTP/1.1 must have a Host line"};
  if (!lines.hosts.empty() && !is_host(lines.hosts[0]))
    return Refusal{400, cat("Host must be a name or an address, not ", clipped(std::string(lines.hosts[0])))};
  if (lines.lengths.size() > 1) return Refusal{400, "the request has several Content-Length lines"};
  if (!lines.lengths.empty() &&
      (lines.lengths[0].empty() || !std::ranges::all_of(lines.lengths[0], [](char c) { return c >= '0' && c <= '9'; })))
    return Refusal{400, cat("Content-Length must be a number, not ", clipped(std::string(lines.lengths[0])))};
  if (lines.encodings.empty()) return {};
  if (!lines.lengths.empty()) return Refusal{400, "the request has both Content-Length and Transfer-Encoding"};
  if (lines.is_1_0) return Refusal{400, "HTTP/1.0 has no Transfer-Encoding"};
  return encoding_error(lines.encodings);
}

std::optional<RequestTarget> split_target(std::string_view target) {
  RequestTarget out;
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!equals_ignoring_case(target.substr(0, scheme.size()), scheme)) continue;
    target.remove_prefix(scheme.size());
    out.host = target.substr(0, target.find_first_of("/?"));
    if (out.host->empty() || !is_host(*out.host)) return {};
    target.remove_prefix(out.host->size());
    if (target.empty()) target = "/";
    break;
  }
  const bool is_path = target.starts_with('/') || (out.host && target.starts_with('?'));
  if ((!is_path && target != "*") || target.find('#') != std::string_view::npos) return {};
  const size_t end = std::min(target.find('?'), target.size());
  out.path = end == 0 ? "/" : target.substr(0, end);
  out.query = target.substr(std::min(end + 1, target.size()));
  return out;
}

namespace {

// Consumes `text` up to the next `separator`, and returns it without surrounding blanks.
std::string_view next_piece(std::string_view& text, char separator) {
  std::string_view piece = text.substr(0, text.find(separator));
  text.remove_prefix(std::min(piece.size() + 1, text.size()));
  piece.remove_prefix(std::min(piece.find_first_not_of(" \t"), piece.size()));
  return piece.substr(0, piece.find_last_not_of(" \t") + 1);
}

bool is_gzip(std::string_view coding) {
  return std::ranges::equal(coding, std::string_view("gzip"), [](char a, char b) { return (a | 0x20) == b; });
}

}  // namespace

bool accepts_gzip(std::string_view accept_encoding) {
  std::optional<bool> named, any;
  while (!accept_encoding.empty()) {
    std::string_view parameters = next_piece(accept_encoding, ',');
    const std::string_view coding = next_piece(parameters, ';');
    bool wanted = true;
    while (!parameters.empty()) {
      const std::string_view parameter = next_piece(parameters, ';');
      if (parameter.starts_with("q=") || parameter.starts_with("Q="))
        wanted = parameter.find_first_of("123456789") != parameter.npos;
    }
    if (is_gzip(coding)) named = wanted;
    if (coding == "*") any = wanted;
  }
  return named.value_or(any.value_or(false));
}

std::string gzip(std::string_view text) {
  constexpr int kGzip = 16;  // added to the window's size: gzip's header and checksum, not zlib's
  z_stream stream{};
  require<std::runtime_error>(text.size() <= std::numeric_limits<uInt>::max(), "an answer of ", text.size(),
                              " bytes is too long to be compressed");
  if (deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, MAX_WBITS + kGzip, MAX_MEM_LEVEL, Z_DEFAULT_STRATEGY) != Z_OK)
    throw std::bad_alloc();
  std::string out(deflateBound(&stream, static_cast<uLong>(text.size())), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);  // deflateBound() leaves room for all of it
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

}  // namespace witan::serve
