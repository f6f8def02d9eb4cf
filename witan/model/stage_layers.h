// Which layers a rank holds where the stages of a pipeline divide them (parallel/stages.h): runs of them, its chunks,
// between which the residual stream goes through the chunks of other stages.
#pragma once

#include <cstdint>
#include <vector>

namespace witan {

struct LayerRange {
  int64_t first, last;  // [first, last)
  int64_t size() const { return last - first; }
  bool contains(int64_t layer) const { return layer >= first && layer < last; }
  bool operator==(const LayerRange&) const = default;
};

struct StageLayers {
  std::vector<LayerRange> chunks;  // in the order of layers
  bool first = true;               // the first chunk begins with the embedding
  bool last = true;                // the last one ends with the norm and the head

  static StageLayers all(int64_t num_layers) { return {{{0, num_layers}}}; }
  int count() const { return static_cast<int>(chunks.size()); }
};

}  // namespace witan
