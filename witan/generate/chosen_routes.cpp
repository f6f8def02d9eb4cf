#include "witan/generate/chosen_routes.h"

namespace witan {

void ChosenRoutes::record(Stream& stream, int64_t router, const Tensor& ids, const Tensor& /*weights*/) {
  std::vector<int32_t>& chosen = of_routers_[static_cast<size_t>(router)];
  chosen.resize(static_cast<size_t>(ids.elements()));
  stream.read(chosen.data(), ids);
  topk_ = ids.size(1);
}

void ChosenRoutes::append_to(std::vector<int32_t>& routes, int64_t token) const {
  for (const std::vector<int32_t>& chosen : of_routers_)
    routes.insert(routes.end(), chosen.begin() + token * topk_, chosen.begin() + (token + 1) * topk_);
}

}  // namespace witan
