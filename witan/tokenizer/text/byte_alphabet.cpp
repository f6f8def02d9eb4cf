#include "witan/tokenizer/text/byte_alphabet.h"

#include <algorithm>

namespace witan {
namespace {

constexpr int kFirstExtra = 0x100;
constexpr int kEndOfAlphabet = kFirstExtra + 68;

struct Alphabet {
  std::array<uint16_t, 256> character;       // byte -> code point
  std::array<int16_t, kEndOfAlphabet> byte;  // code point -> byte, or -1
  std::array<uint8_t, 256> order;            // bytes by code point
};

constexpr Alphabet make_alphabet() {
  Alphabet a{};
  a.byte.fill(-1);
  int extra = kFirstExtra;
  for (int b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    a.character[b] = static_cast<uint16_t>(printable ? b : extra++);
    a.byte[a.character[b]] = static_cast<int16_t>(b);
  }
  int rank = 0;
  for (const int16_t b : a.byte)
    if (b >= 0) a.order[rank++] = static_cast<uint8_t>(b);
  return a;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

const std::array<uint8_t, 256>& byte_alphabet_order() {
  return kAlphabet.order;
}

std::string to_byte_alphabet(std::string_view bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  for (const char byte : bytes) {
    const int c = kAlphabet.character[static_cast<uint8_t>(byte)];
    if (c < 0x80) {
      text += static_cast<char>(c);
    } else {
      text += static_cast<char>(0xC0 | c >> 6);
      text += static_cast<char>(0x80 | (c & 0x3F));
    }
  }
  return text;
}

std::optional<std::string> from_byte_alphabet(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    int c = static_cast<uint8_t>(text[i]);
    if (c >= 0x80) {  // the whole alphabet fits one or two bytes of UTF-8
      const int next = i + 1 < text.size() ? static_cast<uint8_t>(text[i + 1]) : 0;
      if ((c & 0xE0) != 0xC0 || (next & 0xC0) != 0x80) return std::nullopt;
      c = (c & 0x1F) << 6 | (next & 0x3F);
      ++i;
    }
    if (c >= kEndOfAlphabet || kAlphabet.byte[c] < 0) return std::nullopt;
    bytes += static_cast<char>(kAlphabet.byte[c]);
  }
  return bytes;
}

}  // namespace witan
