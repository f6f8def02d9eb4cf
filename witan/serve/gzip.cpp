#include "witan/serve/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <limits>
#include <new>
#include <optional>
#include <stdexcept>

#include "witan/base/error.h"

namespace witan::serve {

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
