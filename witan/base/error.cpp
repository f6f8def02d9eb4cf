#include "witan/base/error.h"

#include <array>
#include <charconv>
#include <sstream>

namespace witan {
namespace {

constexpr int kStreamPrecision = 6;  // default digits of a stream's numbers

template <class... Format>
void append_number(std::string& to, Format... number) {
  std::array<char, 32> digits;
  to.append(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), number...).ptr);
}

}  // namespace

// Streams are slow compared to the rest, so that only types without another conversion are written to one.
std::string join_message(std::initializer_list<MessagePiece> pieces) {
  std::string joined;
  for (const MessagePiece& piece : pieces) {
    switch (piece.kind_) {
      case MessagePiece::Kind::text:
        joined += piece.text_;
        break;
      case MessagePiece::Kind::letter:
        joined += static_cast<char>(piece.integer_);
        break;
      case MessagePiece::Kind::integer:
        append_number(joined, piece.integer_);
        break;
      case MessagePiece::Kind::natural:
        append_number(joined, static_cast<uint64_t>(piece.integer_));
        break;
      case MessagePiece::Kind::real:
        append_number(joined, piece.real_, std::chars_format::general, kStreamPrecision);
        break;
      case MessagePiece::Kind::value: {
        std::ostringstream out;
        piece.write_(out, piece.value_);
        joined += out.view();
        break;
      }
    }
  }
  return joined;
}

}  // namespace witan
