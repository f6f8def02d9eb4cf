#include "witan/train/step/step_routes.h"

#include "witan/base/error.h"

namespace witan {

StepRoutes::StepRoutes(Stream& stream, Transformer& model, const RunConfig& config, int64_t micro_batches,
                       int64_t tokens)
    : micro_batches_(micro_batches) {
  int64_t routers = 0;
  model.visit([&](Module& module) {
    if (auto* router = dynamic_cast<Router*>(&module)) router->use_routes(this, routers++);
  });
  const Shape shape = {routers * micro_batches, tokens, config.model.moe.moe_router_topk};
  const DType accumulated = accumulator(config.model.compute_dtype());
  if (!config.train.replay_routes.empty()) replayed_ = stream.empty(shape, DType::i32, MemoryTag::workspace);
  if (config.train.record_routes.empty()) return;
  ids_ = stream.empty(shape, DType::i32, MemoryTag::workspace);
  weights_ = stream.empty(shape, accumulated, MemoryTag::workspace);
}

Tensor StepRoutes::part(const Tensor& of, int64_t router) const {
  return of.narrow(0, router * micro_batches_ + micro_batch_, 1).reshape({of.size(1), of.size(2)});
}

Tensor StepRoutes::recorded(int64_t router) {
  return replays() && micro_batch_ >= 0 ? part(replayed_, router) : Tensor();
}

void StepRoutes::record(Stream& stream, int64_t router, const Tensor& ids, const Tensor& weights) {
  if (!records() || micro_batch_ < 0) return;
  stream.copy(part(ids_, router), ids);
  stream.copy(part(weights_, router), weights);
}

void StepRoutes::upload(Stream& stream, std::span<const int32_t> ids) {
  require<ShapeError>(static_cast<int64_t>(ids.size()) == replayed_.elements() || stream.is_meta(),
                      "replayed routes: ", ids.size(), " ids, the step's tokens have ", replayed_.shape());
  stream.write(replayed_, ids.data());
}

StepRoutes::Found StepRoutes::read(Stream& stream) const {
  const auto count = static_cast<size_t>(ids_.elements());
  Found found{std::vector<int32_t>(count), std::vector<float>(count)};
  stream.read(found.ids.data(), ids_);
  dispatch_floating(weights_.dtype(), [&]<class A>() {
    std::vector<A> weights(count);
    stream.read(weights.data(), weights_);
    for (size_t i = 0; i < count; ++i) found.weights[i] = static_cast<float>(weights[i]);
  });
  // A file names K experts of every token: padding, which has none, has the first ones, with weights of 0.
  const auto K = static_cast<size_t>(ids_.shape()[2]);
  for (size_t i = 0; i < count; ++i)
    if (found.ids[i] < 0) found.ids[i] = static_cast<int32_t>(i % K);
  return found;
}

}  // namespace witan
