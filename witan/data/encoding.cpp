#include "witan/data/encoding.h"

#include <algorithm>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {
namespace {

constexpr size_t kWindow = 32 << 10;  // looked at on either side

struct Counts {
  int64_t valid = 0;      // sequences of several bytes that are UTF-8
  int64_t invalid = 0;    // bytes that are part of none
  int64_t paired = 0;     // of those, with a byte beyond ASCII beside them
  bool controls = false;  // some of those lie where ISO-8859-1 has control characters
};

bool beyond_ascii(char c) {
  return static_cast<unsigned char>(c) >= 0x80;
}

Counts count_sequences(std::string_view text) {
  Counts counts;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(find_invalid_utf8(text.substr(begin)), text.size() - begin) + begin;
    for (size_t i = begin; i < end; ++i) counts.valid += (static_cast<unsigned char>(text[i]) & 0xC0) == 0xC0;
    if (end < text.size()) {
      ++counts.invalid;
      counts.controls |= static_cast<unsigned char>(text[end]) < 0xA0;
      counts.paired +=
          (end > 0 && beyond_ascii(text[end - 1])) || (end + 1 < text.size() && beyond_ascii(text[end + 1]));
    }
    begin = end + 1;
  }
  return counts;
}

// "iconv -f latin1 -t utf-8 notes.txt > notes.utf8.txt"
std::string convert_command(const fs::path& path, const char* from) {
  fs::path plain = path.filename();
  const fs::path packed = plain.extension();
  const char* unpack = packed == ".gz" ? "zcat" : packed == ".zst" ? "zstdcat" : nullptr;
  if (unpack) plain.replace_extension();
  const fs::path to = plain.stem().string() + ".utf8" + plain.extension().string();
  return unpack ? cat(unpack, " ", shell_word(path.string()), " | iconv -f ", from, " -t utf-8 > ",
                      shell_word(to.string()))
                : cat("iconv -f ", from, " -t utf-8 ", shell_word(path.string()), " > ", shell_word(to.string()));
}

}  // namespace

Encoding guess_encoding(std::string_view text, size_t at) {
  const size_t begin = at > kWindow ? at - kWindow : 0;
  const Counts counts = count_sequences(text.substr(begin, 2 * kWindow));
  if (counts.valid > 4 * counts.invalid) return Encoding::damaged_utf8;
  if (5 * counts.paired > 3 * counts.invalid) return Encoding::several_bytes;
  return counts.controls ? Encoding::windows_1252 : Encoding::latin1;
}

std::string explain_invalid_utf8(const fs::path& path, std::string_view text, size_t at) {
  const char* flag = "--replace-invalid-utf8 (replaces each such sequence by U+FFFD)";
  const auto convert = [&](const char* what, const char* from) {
    return cat("the text looks like ", what, ": convert it (`", convert_command(path, from),
               "`), or read it as it is with ", flag);
  };
  switch (guess_encoding(text, at)) {
    case Encoding::latin1:
      return convert("ISO-8859-1 (latin1)", "latin1");
    case Encoding::windows_1252:
      return convert("windows-1252", "windows-1252");
    case Encoding::several_bytes:
      return convert("another script's encoding (GB18030, Shift_JIS, Big5, EUC-KR, KOI8-R ...)", "ENCODING");
    case Encoding::damaged_utf8:
      return cat("the rest looks like UTF-8, so that the file may be damaged: restore it, or read it as it is with ",
                 flag);
  }
  return {};
}

}  // namespace witan
