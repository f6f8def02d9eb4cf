// The pieces that a text is split into.
#pragma once

#include <functional>
#include <span>
#include <string_view>

namespace witan {

// Consecutive pieces: each starts where the previous one ends.
struct Pieces {
  const char* begin;                  // of the first piece
  std::span<const char* const> ends;  // of each piece
  const char* readable_end;           // bytes before this may be read

  template <class Sink>
  void each(Sink sink) const {
    const char* from = begin;
    for (const char* const end : ends) {
      sink(std::string_view(from, static_cast<size_t>(end - from)));
      from = end;
    }
  }
};

// Receive the pieces of a text in order, one or several at a time. Every byte of the text is in exactly one piece.
using PieceSink = std::function<void(std::string_view piece)>;
using PiecesSink = std::function<void(const Pieces& pieces)>;

}  // namespace witan
