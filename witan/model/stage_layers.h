// The layers that a pipeline-parallel rank holds (parallel/stages.h): several runs of layers, its virtual stages,
// between which the residual stream passes through those of other ranks.
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
