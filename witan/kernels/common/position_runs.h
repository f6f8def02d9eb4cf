// The tokens of a divided sequence that a tensor holds.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace witan::kernels {

// The positions of a row's tokens in their sequence: one run, or two rising ones.
struct PositionRuns {
  int64_t first = 0;                                    // of token 0
  int64_t split = std::numeric_limits<int64_t>::max();  // the token that begins the second run
  int64_t second = 0;                                   // its position

  bool operator==(const PositionRuns&) const = default;
  int64_t at(int64_t token) const { return token < split ? first + token : second + token - split; }
  // The number of the row's first `tokens` tokens before `position`; they come first, since positions rise.
  int64_t before(int64_t position, int64_t tokens) const {
    return std::clamp<int64_t>(position - first, 0, std::min(tokens, split)) +
           std::clamp<int64_t>(position - second, 0, std::max<int64_t>(tokens - split, 0));
  }
  // The runs of the tokens from this one on.
  PositionRuns from(int64_t token) const {
    if (token >= split) return {.first = at(token)};
    const bool two = split < std::numeric_limits<int64_t>::max();
    return {first + token, two ? split - token : split, second};
  }
  // The runs of the elements, `size` for each token.
  PositionRuns of_elements(int64_t size) const {
    const bool two = split < std::numeric_limits<int64_t>::max();
    return {first * size, two ? split * size : split, second * size};
  }
};

}  // namespace witan::kernels
