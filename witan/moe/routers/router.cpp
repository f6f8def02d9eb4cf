#include "witan/moe/routers/router.h"

#include "witan/moe/routers/balance.h"
#include "witan/moe/routers/capacity.h"
#include "witan/moe/routers/topk.h"

namespace witan {

void Router::attach(const ModelServices& services) {
  if (services.routes) routes_ = services.routes;
  if (services.global_load) global_load_ = services.global_load;
  number_ = services.router;
  Module::attach(services);
}

std::unique_ptr<Router> make_router(const Builder& builder, const MoeConfig& config, int64_t width, Group* context) {
  return make_topk_router(builder, config, width, context);
}

std::vector<RouterStatistic> router_statistics(const MoeConfig& config) {
  std::vector<RouterStatistic> all = declare_losses(config);
  for (const auto& more : {declare_topk_statistics(config), declare_capacity_statistics(config)})
    all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace witan
