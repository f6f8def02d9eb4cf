// Union-find over numbered documents, whose sets are named by their first one (Tarjan, 1975, with path halving).
#pragma once

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace witan {

class DisjointSets {
 public:
  explicit DisjointSets(int64_t documents) : parents_(static_cast<size_t>(documents)) {
    std::iota(parents_.begin(), parents_.end(), int64_t{0});
  }

  // The least document of the set.
  int64_t first(int64_t document) {
    auto at = static_cast<size_t>(document);
    while (parents_[at] != static_cast<int64_t>(at)) {
      parents_[at] = parents_[static_cast<size_t>(parents_[at])];
      at = static_cast<size_t>(parents_[at]);
    }
    return static_cast<int64_t>(at);
  }

  // False if they were one set already.
  bool join(int64_t a, int64_t b) {
    a = first(a);
    b = first(b);
    if (a == b) return false;
    if (a > b) std::swap(a, b);
    parents_[static_cast<size_t>(b)] = a;
    return true;
  }

  int64_t documents() const { return static_cast<int64_t>(parents_.size()); }

 private:
  std::vector<int64_t> parents_;  // a parent is never after its child
};

}  // namespace witan
