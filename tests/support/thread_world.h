// Runs a test's body on N thread-ranks, each with its own arena, pool and stream.
#pragma once

#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "support/comes_true.h"
#include "support/rank.h"
#include "witan/comm/threads/threads.h"

namespace witan::testing {

// Waits until a rank of the world has failed, for calls that follow the failure.
inline void until_failed(const HostGroup& group) {
  test::comes_true([&] { return group.failure()->raised(); });
}

struct ThreadRank : Rank {
  ThreadRank(ThreadWorld& of, int index) : Rank(1, int64_t{1} << 28), world(of), rank(index) {}

  int size() const { return world.size(); }
  // The rank's handle of the group of all ranks.
  std::unique_ptr<HostGroup> everyone(const std::string& axis = "data") {
    std::vector<int> ranks(static_cast<size_t>(world.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return world.group(rank, ranks, axis);
  }
  // Normal values that differ from rank to rank.
  Tensor own_normal(const Shape& shape, DType dtype, const std::string& name) {
    return normal(shape, dtype, name + " of rank " + std::to_string(rank));
  }

  ThreadWorld& world;
  const int rank;
};

inline void on_ranks(ThreadWorld& world, const std::function<void(ThreadRank&)>& body) {
  world.run([&](int index) {
    ThreadRank rank(world, index);
    body(rank);
  });
}
// A hanging rank fails its test after 20 seconds.
inline void on_ranks(int ranks, const std::function<void(ThreadRank&)>& body) {
  ThreadWorld world(ranks, {.deadline_seconds = 20});
  on_ranks(world, body);
}

}  // namespace witan::testing
