// Groups the ranks of a layout into classes that do the same work, so that a step of one rank on the meta device stands
// for its whole class.
#pragma once

#include <cstddef>
#include <vector>

#include "witan/parallel/layout.h"
#include "witan/train/config/config.h"

namespace witan {

struct RankClass {
  std::vector<int> ranks;  // ascending
  int planned = 0;         // the rank that is planned for all
  bool exact =
      true;  // all do the same; false: all hold the same part of the model, of which `planned` owns the largest shard
};

// Puts every rank into one class; classes are ordered by their first ranks. Ranks differ only by
//   - their pipeline stage, and the shapes of the parameters that they hold,
//   - their coordinate on an axis, if it decides what is kept, who sends first or how much a sliding window masks
//   (tensor,
//     expert tensor, context),
//   - the elements that they own, if optimizer state, gradients or values are sharded.
// Ranks with different samples or experts have equally many of them. If there are more than `most` classes, what ranks
// own is ignored, which merges classes. A pure function; the config must be valid.
std::vector<RankClass> rank_classes(const RunConfig& config, const Layout& layout, size_t most);

}  // namespace witan
