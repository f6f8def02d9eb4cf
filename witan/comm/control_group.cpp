#include "witan/comm/control_group.h"

#include <numeric>
#include <vector>

namespace witan {
namespace {

constexpr int64_t kArenaBytes = int64_t{256} << 20;

std::unique_ptr<Group> all_ranks(World& world, int rank, const std::string& name) {
  std::vector<int> ranks(static_cast<size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.group(rank, ranks, name);
}

}  // namespace

ControlGroup::ControlGroup(World& world, int rank, const std::string& name)
    : pool_(1),
      stream_({Device::Kind::cpu}, Arena::reserve(kArenaBytes), pool_),
      group_(all_ranks(world, rank, name)) {}

}  // namespace witan
