#include "witan/comm/host_group.h"

#include <algorithm>

#include "witan/base/error.h"

namespace witan {

int rank_in_group(int rank, const std::vector<int>& ranks, int world_size, const std::string& name) {
  const auto list = [&] {
    std::string text;
    for (const int r : ranks) text += cat(text.empty() ? "" : ", ", r);
    return text;
  };
  for (auto at = ranks.begin(); at != ranks.end(); ++at) {
    require<ConfigError>(*at >= 0 && *at < world_size, "axis ", name, ": no rank ", *at, " in a world of ", world_size);
    require<ConfigError>(std::find(ranks.begin(), at, *at) == at, "axis ", name, ": rank ", *at,
                         " appears twice in the group [", list(), "]");
  }
  const auto here = std::find(ranks.begin(), ranks.end(), rank);
  require<ConfigError>(here != ranks.end(), "axis ", name, ": rank ", rank, " is not in the group [", list(), "]");
  return static_cast<int>(here - ranks.begin());
}

std::string rank_list(std::span<const int> ranks) {
  constexpr size_t kMost = 16;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i == kMost) return cat(text, " and ", ranks.size() - i, " more");
    text += cat(i == 0 ? "" : ", ", ranks[i]);
  }
  return text;
}

}  // namespace witan
