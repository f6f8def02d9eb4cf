#include "witan/base/error.h"

#include <sstream>

namespace witan {

std::string join_message(std::initializer_list<MessagePiece> pieces) {
  std::ostringstream out;
  for (const MessagePiece& piece : pieces) {
    switch (piece.kind_) {
      case MessagePiece::Kind::text:
        out << piece.text_;
        break;
      case MessagePiece::Kind::letter:
        out << static_cast<char>(piece.integer_);
        break;
      case MessagePiece::Kind::integer:
        out << piece.integer_;
        break;
      case MessagePiece::Kind::natural:
        out << static_cast<uint64_t>(piece.integer_);
        break;
      case MessagePiece::Kind::real:
        out << piece.real_;
        break;
      case MessagePiece::Kind::value:
        piece.write_(out, piece.value_);
        break;
    }
  }
  return std::move(out).str();
}

}  // namespace witan
