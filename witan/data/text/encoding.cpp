#include "witan/data/text/encoding.h"

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

std::string convert_command(const fs::path& path, std::string_view from) {
  return rewrite_command(path, cat("iconv -f ", from, " -t utf-8"), ".utf8");
}

// A form of Unicode with code units of several bytes.
struct WideForm {
  const char* name;
  size_t width;  // bytes of a unit
  bool big_endian;
  std::string_view mark;  // U+FEFF
};

constexpr WideForm kWideForms[] = {{"utf-32", 4, false, {"\xFF\xFE\0\0", 4}},  // begins with the mark of UTF-16
                                   {"utf-32", 4, true, {"\0\0\xFE\xFF", 4}},
                                   {"utf-16", 2, false, {"\xFF\xFE", 2}},
                                   {"utf-16", 2, true, {"\xFE\xFF", 2}}};

// Characters of ASCII in the whole units of `head`; 0 where some unit is none of text.
size_t ascii_units(std::string_view head, const WideForm& form) {
  size_t ascii = 0;
  bool high = false;  // the unit before is the first of a surrogate pair
  for (size_t begin = 0; begin + form.width <= head.size(); begin += form.width) {
    uint32_t unit = 0;
    for (size_t i = 0; i < form.width; ++i) {
      const size_t at = begin + (form.big_endian ? i : form.width - 1 - i);
      unit = unit << 8 | static_cast<unsigned char>(head[at]);
    }
    const bool low = unit >= 0xDC00 && unit < 0xE000;
    if (high != (low && form.width == 2) || unit > 0x10FFFF || (unit & 0xFFFE) == 0xFFFE) return 0;
    high = form.width == 2 && unit >= 0xD800 && unit < 0xDC00;
    const bool control = unit < 0x20 || (unit >= 0x7F && unit < 0xA0);
    if (control && unit != '\t' && unit != '\n' && unit != '\r' && unit != '\f') return 0;
    ascii += unit < 0x80;
  }
  return ascii;
}

}  // namespace

std::string rewrite_command(const fs::path& path, std::string_view program, std::string_view mark,
                            std::string_view extension) {
  fs::path plain = path.filename();
  const fs::path packed = plain.extension();
  const char* unpack = packed == ".gz" ? "zcat" : packed == ".zst" ? "zstdcat" : nullptr;
  if (unpack) plain.replace_extension();
  const std::string to = cat(plain.stem().string(), mark, extension.empty() ? plain.extension().string() : extension);
  return unpack ? cat(unpack, " ", shell_word(path.string()), " | ", program, " > ", shell_word(to))
                : cat(program, " ", shell_word(path.string()), " > ", shell_word(to));
}

std::string explain_wide_text(const fs::path& path, std::string_view head) {
  const WideForm* found = nullptr;
  bool marked = false;
  size_t most = 0;
  for (const WideForm& form : kWideForms) {
    if (marked) break;
    marked = head.starts_with(form.mark);
    const size_t ascii = head.find('\0') == head.npos ? 0 : ascii_units(head, form);
    if (marked || ascii > most) found = &form;
    most = std::max(most, ascii);
  }
  if (!found) return "";
  const char* endian = found->big_endian ? "big" : "little";
  // With the mark iconv finds the order of the bytes itself, and drops it.
  const std::string from = cat(found->name, marked ? "" : found->big_endian ? "be" : "le");
  return cat(found->width == 2 ? "UTF-16 (" : "UTF-32 (", endian, "-endian): convert it to UTF-8 (`",
             convert_command(path, from), "`)");
}

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
