#include "witan/train/step/step_routes.h"

#include "witan/base/error.h"

namespace witan {

StepRoutes::StepRoutes(const Transformer& model, const RunConfig& config)
    : records_(!config.train.record_routes.empty()),
      replays_(!config.train.replay_routes.empty()),
      routers_(model.routers()),
      topk_(config.model.moe.moe_router_topk),
      weight_dtype_(accumulator(config.model.compute_dtype())) {}

void StepRoutes::allocate(Stream& stream, int64_t micro_batches, int64_t tokens) {
  micro_batches_ = micro_batches;
  const Shape shape = {routers_ * micro_batches, tokens, topk_};
  if (replays_) replayed_ = stream.empty(shape, DType::i32, MemoryTag::workspace);
  if (!records_) return;
  ids_ = stream.empty(shape, DType::i32, MemoryTag::workspace);
  weights_ = stream.empty(shape, weight_dtype_, MemoryTag::workspace);
}

void StepRoutes::release() {
  replayed_ = ids_ = weights_ = {};
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
