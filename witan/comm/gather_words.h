// What ranks tell each other while they make their groups, when there is no stream yet that is theirs.
#pragma once

#include <cstdint>
#include <vector>

#include "witan/comm/host_group.h"

namespace witan {

// The words of every rank, as many of each, in rank order: [n * mine.size()]. All ranks of the group together.
std::vector<int64_t> gather_words(HostGroup& group, const std::vector<int64_t>& mine);

}  // namespace witan
