// Lines of a byte stream, each of bounded length.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "witan/data/text/decompress.h"

namespace witan {

// Not thread-safe. Keeps a reference to `reader`.
class LineReader {
 public:
  LineReader(ByteReader& reader, uint64_t most_bytes);

  // Advances to the next line; false at the end. The last line may lack its newline. Throws what the reader throws.
  bool next();

  // The line without "\n" or "\r\n"; of an over-long line the first `most_bytes` bytes. Valid until next().
  std::string_view text() const { return line_; }
  bool too_long() const { return too_long_; }
  int64_t number() const { return number_; }  // from 1

 private:
  ByteReader& reader_;
  uint64_t most_bytes_;
  std::vector<char> block_;
  size_t begin_ = 0, end_ = 0;
  std::string line_;
  bool too_long_ = false;
  int64_t number_ = 0;
};

}  // namespace witan
