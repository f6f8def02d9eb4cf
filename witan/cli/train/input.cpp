#include "witan/cli/train/input.h"

#include "witan/base/error.h"

namespace witan::cli {

std::string read_all(std::FILE* in) {
  constexpr size_t kMost = 256 << 20, kPiece = 1 << 16;
  std::string text;
  for (size_t got = kPiece; got == kPiece;) {
    const size_t before = text.size();
    text.resize(before + kPiece);
    got = std::fread(text.data() + before, 1, kPiece, in);
    text.resize(before + got);
    require<DataError>(text.size() <= kMost, "standard input holds more than 256 MiB: give files instead");
  }
  require<IoError>(!std::ferror(in), "cannot read standard input");
  return text;
}

}  // namespace witan::cli
