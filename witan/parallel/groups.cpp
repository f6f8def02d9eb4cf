#include "witan/parallel/groups.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "witan/comm/meta.h"

namespace witan {
namespace {

// end_of(ranks of the axis, its name)
template <class Make>
Groups make(const Layout& layout, int rank, std::unique_ptr<Group> host, const Make& end_of) {
  const auto end = [&](Axis axis) { return end_of(layout.mesh().ranks(rank, axis), std::string(name_of(axis))); };
  Groups groups{layout, rank, end(Axis::replicate), end(Axis::expert), end(Axis::expert_replicate), std::move(host)};
  return groups;
}

bool exchanges_rows(const std::string& axis) {
  return axis == name_of(Axis::expert);
}

std::unique_ptr<HostGroup> host_group(World& world, int rank) {
  std::vector<int> everyone(static_cast<size_t>(world.size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  return world.group(rank, everyone, "host");
}

}  // namespace

Group& Groups::of(Axis axis) const {
  switch (axis) {
    case Axis::replicate:
      return *replicate;
    case Axis::expert:
      return *expert;
    case Axis::expert_replicate:
      return *expert_replicate;
    default:
      throw Error(ExitCode::internal, cat("this layout has no group for axis ", axis));
  }
}

Groups make_groups(World& world, const Layout& layout, int rank) {
  return make(layout, rank, host_group(world, rank), [&](const std::vector<int>& ranks, const std::string& axis) {
    return std::unique_ptr<Group>(world.group(rank, ranks, axis));
  });
}

Groups make_groups(World& world, const Layout& layout, int rank, Stream& stream, Sums sums) {
  if (!stream.is_cuda()) return make_groups(world, layout, rank);
  auto host = host_group(world, rank);
  const auto watch = cuda::watch(stream, *host);
  return make(layout, rank, std::move(host), [&](const std::vector<int>& ranks, const std::string& axis) {
    return cuda::make_group(world.group(rank, ranks, axis), stream, watch,
                            {sums, exchanges_rows(axis) ? PeerAccess::wanted : PeerAccess::none});
  });
}

Groups make_meta_groups(const Layout& layout, int rank, PeerAccess peers) {
  const auto end_of = [&](const std::vector<int>& ranks, const std::string& axis) -> std::unique_ptr<Group> {
    const auto here = std::ranges::find(ranks, rank) - ranks.begin();
    return std::make_unique<MetaGroup>(static_cast<int>(ranks.size()), static_cast<int>(here), axis,
                                       exchanges_rows(axis) ? peers : PeerAccess::none);
  };
  return make(layout, rank, std::make_unique<MetaGroup>(layout.mesh().world_size(), rank, "host"), end_of);
}

}  // namespace witan
