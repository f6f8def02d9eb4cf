// The experts that routers choose for the tokens of generation steps.
#pragma once

#include <cstdint>
#include <vector>

#include "witan/moe/routers/router.h"

namespace witan {

// Takes them while it is lent to the model's routers (ModelServices::routes), one step after the other.
class ChosenRoutes : public RouteAccess {
 public:
  explicit ChosenRoutes(int64_t routers) : of_routers_(static_cast<size_t>(routers)) {}

  Tensor recorded(int64_t /*router*/) override { return {}; }
  void record(Stream& stream, int64_t router, const Tensor& ids, const Tensor& /*weights*/) override {
    std::vector<int32_t>& chosen = of_routers_[static_cast<size_t>(router)];
    chosen.resize(static_cast<size_t>(ids.elements()));
    stream.read(chosen.data(), ids);
    topk_ = ids.size(1);
  }
  // Appends those of the last step's token to [.., routers, K].
  void append_to(std::vector<int32_t>& routes, int64_t token) const {
    for (const std::vector<int32_t>& chosen : of_routers_)
      routes.insert(routes.end(), chosen.begin() + token * topk_, chosen.begin() + (token + 1) * topk_);
  }

 private:
  std::vector<std::vector<int32_t>> of_routers_;  // [T, K] each
  int64_t topk_ = 0;
};

}  // namespace witan
