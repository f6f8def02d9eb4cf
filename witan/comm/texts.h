// Texts between the ranks of a group, for what is said before work begins. Collective.
#pragma once

#include <string>
#include <vector>

#include "witan/comm/group.h"

namespace witan {

// What every rank says, in rank order. `stream` is on the CPU, and its arena has room for so many times the longest.
std::vector<std::string> all_texts(Stream& stream, Group& group, const std::string& own);
// What `root` says.
std::string text_of(Stream& stream, Group& group, int root, const std::string& own);

// "rank 2", "ranks 0, 1, 3".
std::string list_ranks(const std::vector<int>& ranks);

}  // namespace witan
