#include "witan/comm/meta.h"

#include "witan/base/error.h"

namespace witan {

void MetaGroup::perform(Stream& stream, const Collective& call) {
  throw CommError(cat("axis ", name(), ": ", name_of(call.kind), " on ", stream.device(), " among ", size(),
                      " ranks that are only counted; a meta group serves meta streams"));
}

}  // namespace witan
