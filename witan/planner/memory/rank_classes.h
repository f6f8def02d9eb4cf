// Which ranks of a layout do the same: a step of one of them, on the meta device, tells of all.
#pragma once

#include <cstddef>
#include <vector>

#include "witan/parallel/layout.h"
#include "witan/train/run/config.h"

namespace witan {

struct RankClass {
  std::vector<int> ranks;  // ascending
  int planned = 0;         // the one of them that is planned for all
  bool exact = true;       // all do the same; else all hold the same of the model, and `planned` owns the most of it
};

// Every rank in one class, in the order of their first ranks. What ranks do differs by
//   - their stage of the pipeline, and the shapes of what they hold of it,
//   - the place on an axis where it decides what is kept, who sends first or how much a sliding window hides (tensor,
//     expert tensor, context),
//   - the elements of parameters that they own, where the optimizer, gradients or values are divided,
// and by nothing else: ranks with samples or experts of their own have as many as any other. More than `most` classes
// are made fewer by leaving out what is owned. A pure function; the config must be valid.
std::vector<RankClass> rank_classes(const RunConfig& config, const Layout& layout, size_t most);

}  // namespace witan
