#include "witan/parallel/groups.h"

#include <string>

#include "witan/comm/meta.h"

namespace witan {
namespace {

template <class Make>
Groups make(const Layout& layout, int rank, const Make& end_of) {
  return {layout, rank, end_of(Axis::replicate), end_of(Axis::expert), end_of(Axis::expert_replicate)};
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

Groups make_groups(ThreadWorld& world, const Layout& layout, int rank) {
  return make(layout, rank, [&](Axis axis) {
    return world.group(rank, layout.mesh().ranks(rank, axis), std::string(name_of(axis)));
  });
}

Groups make_meta_groups(const Layout& layout, int rank) {
  return make(layout, rank, [&](Axis axis) -> std::unique_ptr<Group> {
    const Mesh& mesh = layout.mesh();
    return std::make_unique<MetaGroup>(mesh.size(axis), mesh.coordinate(rank, axis), std::string(name_of(axis)));
  });
}

}  // namespace witan
