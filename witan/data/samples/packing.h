// Packs documents whole into samples of one size.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace witan {

enum class Packing {
  none,      // one document a sample
  greedy,    // documents one after the other, in a random order, into a sample until the next one does not fit
  best_fit,  // the longest first, each into the fullest sample that has room for it: best-fit decreasing
};

// none | greedy | best_fit. Throws ConfigError.
Packing packing_from_name(std::string_view name);

// Documents by sample.
struct PackedDocuments {
  std::vector<int64_t> documents;  // of all samples
  std::vector<int64_t> begins;     // [samples + 1]: where each sample's documents begin

  int64_t samples() const { return static_cast<int64_t>(begins.size()) - 1; }
};

// Packs documents of these sizes, none larger than `capacity`; those of size 0 are left out. Of equally full samples
// best_fit takes the one begun first. A pure function of its arguments, in O(n), for best_fit O(n log(capacity)).
PackedDocuments pack_documents(const std::vector<int64_t>& sizes, int64_t capacity, Packing packing, uint64_t seed);

}  // namespace witan
