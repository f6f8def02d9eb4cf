#include "witan/data/packing.h"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <set>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/rng.h"
#include "witan/data/permutation.h"

namespace witan {
namespace {

using Bins = std::vector<std::vector<int64_t>>;

std::vector<int64_t> shuffled(const std::vector<int64_t>& sizes, uint64_t seed) {
  std::vector<int64_t> order;
  const Permutation permutation(static_cast<int64_t>(sizes.size()), seed, Philox::stream_of("packing order"));
  for (int64_t place = 0; place < static_cast<int64_t>(sizes.size()); ++place)
    if (const int64_t document = permutation(place); sizes[static_cast<size_t>(document)] > 0)
      order.push_back(document);
  return order;
}

Bins in_order(const std::vector<int64_t>& order, const std::vector<int64_t>& sizes, int64_t capacity) {
  Bins bins;
  int64_t room = 0;
  for (const int64_t document : order) {
    const int64_t size = sizes[static_cast<size_t>(document)];
    if (size > room) {
      bins.emplace_back();
      room = capacity;
    }
    bins.back().push_back(document);
    room -= size;
  }
  return bins;
}

Bins best_fit(std::vector<int64_t> order, const std::vector<int64_t>& sizes, int64_t capacity) {
  std::ranges::stable_sort(
      order, [&](int64_t a, int64_t b) { return sizes[static_cast<size_t>(a)] > sizes[static_cast<size_t>(b)]; });
  Bins bins;
  std::set<std::pair<int64_t, size_t>> rooms;  // of each sample, and its number
  for (const int64_t document : order) {
    const int64_t size = sizes[static_cast<size_t>(document)];
    const auto found = rooms.lower_bound({size, 0});
    const auto [room, bin] = found == rooms.end() ? std::pair{capacity, bins.size()} : *found;
    if (found == rooms.end())
      bins.emplace_back();
    else
      rooms.erase(found);
    bins[bin].push_back(document);
    rooms.emplace(room - size, bin);
  }
  return bins;
}

}  // namespace

Packing packing_from_name(std::string_view name) {
  if (name == "none") return Packing::none;
  if (name == "best_fit") return Packing::best_fit;
  require<ConfigError>(name == "greedy", "packing = ", name, ": must be greedy, best_fit or none");
  return Packing::greedy;
}

PackedDocuments pack_documents(const std::vector<int64_t>& sizes, int64_t capacity, Packing packing, uint64_t seed) {
  assert(std::ranges::all_of(sizes, [&](int64_t size) { return size >= 0 && size <= capacity; }));
  const std::vector<int64_t> order = shuffled(sizes, seed);
  PackedDocuments packed;
  packed.begins.push_back(0);
  if (packing == Packing::none) {
    packed.documents = order;
    packed.begins.resize(order.size() + 1);
    std::iota(packed.begins.begin(), packed.begins.end(), 0);
    return packed;
  }
  for (const auto& bin :
       packing == Packing::greedy ? in_order(order, sizes, capacity) : best_fit(order, sizes, capacity)) {
    packed.documents.insert(packed.documents.end(), bin.begin(), bin.end());
    packed.begins.push_back(static_cast<int64_t>(packed.documents.size()));
  }
  return packed;
}

}  // namespace witan
