// What a client makes of a compressed answer.
#pragma once

#include <zlib.h>

#include <stdexcept>
#include <string>

namespace witan::test {

// Throws std::runtime_error where it is not one gzip member, whole and undamaged.
inline std::string gunzip(const std::string& bytes) {
  z_stream stream{};
  if (inflateInit2(&stream, MAX_WBITS + 16) != Z_OK) throw std::runtime_error("no memory");
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  std::string text;
  int state = Z_OK;
  while (state == Z_OK) {
    char piece[4096];
    stream.next_out = reinterpret_cast<Bytef*>(piece);
    stream.avail_out = sizeof piece;
    state = inflate(&stream, Z_NO_FLUSH);
    text.append(piece, sizeof piece - stream.avail_out);
  }
  const bool whole = state == Z_STREAM_END && stream.avail_in == 0;
  inflateEnd(&stream);
  if (!whole) throw std::runtime_error("this is no gzip");
  return text;
}

}  // namespace witan::test
