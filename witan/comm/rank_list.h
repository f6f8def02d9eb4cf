// Formats lists of ranks for messages.
#pragma once

#include <span>
#include <string>

namespace witan {

// "rank 3", "ranks 1, 2, 5"; a list of more than 16 is cut: "ranks 0, 1, ..., 15 and 48 more".
std::string rank_list(std::span<const int> ranks);

}  // namespace witan
