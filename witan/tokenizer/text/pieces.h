// What a text is split into.
#pragma once

#include <functional>
#include <span>
#include <string_view>

namespace witan {

// Neighbours: each begins where the one before it ends.
struct Pieces {
  const char* begin;                  // of the first
  std::span<const char* const> ends;  // of each
  const char* readable_end;           // up to here bytes may be read

  template <class Sink>
  void each(Sink sink) const {
    const char* from = begin;
    for (const char* const end : ends) {
      sink(std::string_view(from, static_cast<size_t>(end - from)));
      from = end;
    }
  }
};

// Receive the pieces of a text, in order, one by one or several at once. Every byte of the text is in exactly one
// piece.
using PieceSink = std::function<void(std::string_view piece)>;
using PiecesSink = std::function<void(const Pieces& pieces)>;

}  // namespace witan
