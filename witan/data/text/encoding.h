// Guesses the encoding of text that is not UTF-8 from its bytes, and says how to convert it.
#pragma once

#include <string>
#include <string_view>

#include "witan/base/files/file.h"

namespace witan {

inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // in UTF-8

enum class Encoding {
  damaged_utf8,  // most sequences are UTF-8, a few are not
  latin1,        // ISO-8859-1
  windows_1252,  // the same with letters and quotation marks where ISO-8859-1 has control characters
  several_bytes  // of another script: GB18030, Shift_JIS, Big5, EUC-KR, KOI8-R ...
};

// Guesses from about 64 KiB around the byte at `at`, which is not UTF-8. It can be wrong: single-byte encodings differ
// only in the meaning of their bytes, which no program can see.
Encoding guess_encoding(std::string_view text, size_t at);

// The command that writes what `program` makes of the file, unpacked, under another name in the current folder:
// "zcat notes.txt.gz | iconv -f latin1 -t utf-8 > notes.utf8.txt" with the mark ".utf8". `extension`: of that name, if
// not the file's.
std::string rewrite_command(const fs::path& path, std::string_view program, std::string_view mark,
                            std::string_view extension = {});

// The end of a message about such a byte of `path`: the probable encoding, the command that converts the file, and the
// flag that reads it as it is.
std::string explain_invalid_utf8(const fs::path& path, std::string_view text, size_t at);

// "UTF-16 (little-endian): convert it to UTF-8 (`iconv ...`)", or UTF-32, where the first bytes of `path`, `head`,
// begin with a byte-order mark or make text as such; else "".
std::string explain_wide_text(const fs::path& path, std::string_view head);

}  // namespace witan
