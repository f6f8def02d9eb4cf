#include "witan/data/samples/packing.h"

#include <algorithm>
#include <cassert>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <queue>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/numbers/rng.h"

namespace witan {
namespace {

std::vector<int64_t> shuffled(const std::vector<int64_t>& sizes, uint64_t seed) {
  std::vector<int64_t> order;
  const Permutation permutation(static_cast<int64_t>(sizes.size()), seed, Philox::stream_of("packing order"));
  for (int64_t place = 0; place < static_cast<int64_t>(sizes.size()); ++place)
    if (const int64_t document = permutation(place); sizes[static_cast<size_t>(document)] > 0)
      order.push_back(document);
  return order;
}

// The sample of each document, in the order of `order`.
std::vector<int64_t> in_order(const std::vector<int64_t>& order, const std::vector<int64_t>& sizes, int64_t capacity) {
  std::vector<int64_t> sample_of;
  int64_t sample = -1, room = 0;
  for (const int64_t document : order) {
    const int64_t size = sizes[static_cast<size_t>(document)];
    if (size > room) {
      ++sample;
      room = capacity;
    }
    sample_of.push_back(sample);
    room -= size;
  }
  return sample_of;
}

// The longest first, those of one size as they stand: a counting sort.
std::vector<int64_t> by_falling_size(const std::vector<int64_t>& order, const std::vector<int64_t>& sizes,
                                     int64_t capacity) {
  std::vector<int64_t> begins(static_cast<size_t>(capacity) + 1, 0);  // of sizes capacity, capacity - 1 …
  const auto slot_of = [&](int64_t document) {
    return static_cast<size_t>(capacity - sizes[static_cast<size_t>(document)]);
  };
  for (const int64_t document : order) ++begins[slot_of(document) + 1];
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  std::vector<int64_t> sorted(order.size());
  for (const int64_t document : order) sorted[static_cast<size_t>(begins[slot_of(document)]++)] = document;
  return sorted;
}

// Samples by the room that they have left.
class Rooms {
 public:
  // The fullest sample with this much room, the one begun first among several, and its room; none: there is none.
  std::optional<std::pair<int64_t, int64_t>> take(int64_t size) {
    const auto found = samples_.lower_bound(size);
    if (found == samples_.end()) return {};
    const std::pair taken{found->second.top(), found->first};
    found->second.pop();
    if (found->second.empty()) samples_.erase(found);
    return taken;
  }
  void put(int64_t sample, int64_t room) {
    if (room > 0) samples_[room].push(sample);
  }

 private:
  using Least = std::priority_queue<int64_t, std::vector<int64_t>, std::greater<>>;
  std::map<int64_t, Least> samples_;  // at most `capacity` of them
};

std::vector<int64_t> best_fit(const std::vector<int64_t>& order, const std::vector<int64_t>& sizes, int64_t capacity) {
  std::vector<int64_t> sample_of;
  int64_t samples = 0;
  Rooms rooms;
  for (const int64_t document : order) {
    const int64_t size = sizes[static_cast<size_t>(document)];
    const auto found = rooms.take(size);
    const auto [sample, room] = found ? *found : std::pair{samples++, capacity};
    sample_of.push_back(sample);
    rooms.put(sample, room - size);
  }
  return sample_of;
}

// Documents by sample, in each as they stand in `order`.
PackedDocuments gathered(const std::vector<int64_t>& order, const std::vector<int64_t>& sample_of) {
  const int64_t samples = order.empty() ? 0 : *std::ranges::max_element(sample_of) + 1;
  PackedDocuments packed;
  packed.begins.assign(static_cast<size_t>(samples) + 1, 0);
  for (const int64_t sample : sample_of) ++packed.begins[static_cast<size_t>(sample) + 1];
  std::partial_sum(packed.begins.begin(), packed.begins.end(), packed.begins.begin());
  packed.documents.resize(order.size());
  std::vector<int64_t> next(packed.begins.begin(), packed.begins.end() - 1);
  for (size_t place = 0; place < order.size(); ++place)
    packed.documents[static_cast<size_t>(next[static_cast<size_t>(sample_of[place])]++)] = order[place];
  return packed;
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
  if (packing == Packing::greedy) return gathered(order, in_order(order, sizes, capacity));
  if (packing == Packing::best_fit) {
    const std::vector<int64_t> falling = by_falling_size(order, sizes, capacity);
    return gathered(falling, best_fit(falling, sizes, capacity));
  }
  PackedDocuments alone{order, std::vector<int64_t>(order.size() + 1)};
  std::iota(alone.begins.begin(), alone.begins.end(), 0);
  return alone;
}

}  // namespace witan
