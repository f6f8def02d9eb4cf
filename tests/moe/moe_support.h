// Small layers, and routings made by hand.
#pragma once

#include <numeric>
#include <string>
#include <vector>

#include "support/module.h"
#include "witan/moe/layer/moe.h"
#include "witan/moe/routers/capacity.h"

namespace witan::testing {

// A routing of T tokens with these ids [T, K] and weights [T, K], without losses.
inline Routing routing_of(Rank& rank, const std::vector<int32_t>& ids, int64_t K, int64_t E, Var weights = {}) {
  std::vector<int64_t> counts(static_cast<size_t>(E));
  for (const int32_t id : ids) ++counts[static_cast<size_t>(id)];
  Routing routing;
  routing.ids = rank.tensor<int32_t>({static_cast<int64_t>(ids.size()) / K, K}, ids);
  routing.counts = routing.kept = rank.tensor<int64_t>({E}, counts);
  routing.capacity = routing.ids.size(0);
  routing.weights = std::move(weights);
  return routing;
}

// The routing after each expert has kept its first `capacity` assignments.
inline Routing limited(Rank& rank, const Routing& routing, int64_t capacity) {
  // The first ones are kept whatever the weights, which are not read.
  Routing weighted = routing;
  Tape off(rank.stream, Tape::Mode::off);
  weighted.weights = off.constant(rank.stream.zeros(routing.ids.shape(), DType::f32));
  weighted = ops::limit_to_capacity(rank.stream, weighted, {capacity, DropPolicy::position});
  weighted.weights = routing.weights;
  return weighted;
}

// K different experts for each of T tokens, drawn at random.
inline std::vector<int32_t> random_ids(int64_t T, int64_t K, int64_t E, const std::string& name) {
  const Philox rng(7, Philox::stream_of(name));
  std::vector<int32_t> ids, deck(static_cast<size_t>(E));
  uint64_t draw = 0;
  for (int64_t t = 0; t < T; ++t) {
    std::iota(deck.begin(), deck.end(), 0);
    for (int64_t k = 0; k < K; ++k) {
      std::swap(deck[static_cast<size_t>(k)],
                deck[static_cast<size_t>(k) + rng.below(static_cast<uint64_t>(E - k), draw++)]);
      ids.push_back(deck[static_cast<size_t>(k)]);
    }
  }
  return ids;
}

inline Tensor filled(Rank& rank, const Shape& shape, DType dtype, double value) {
  const Tensor out = rank.stream.empty(shape, dtype);
  dispatch_floating(dtype, [&]<class T>() { std::ranges::fill(out.span<T>(), T(value)); });
  return out;
}

// The concatenated rows of all groups of a receive buffer; rows outside the groups are undefined.
inline std::vector<double> rows_of_groups(const Tensor& pool, const RowGroups& groups) {
  std::vector<double> out;
  for (int64_t e = 0; e < groups.experts(); ++e) {
    const auto rows = values(pool.narrow(0, groups.begin.data<int64_t>()[e], groups.count.data<int64_t>()[e]));
    out.insert(out.end(), rows.begin(), rows.end());
  }
  return out;
}

}  // namespace witan::testing
