#include "witan/comm/rank_list.h"

#include "witan/base/error.h"

namespace witan {

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
