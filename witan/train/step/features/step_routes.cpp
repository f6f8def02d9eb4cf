#include "witan/train/step/features/step_routes.h"

#include "witan/base/error.h"

namespace witan {

StepRoutes::StepRoutes(Stream& stream, const Transformer& model, const RunConfig& config)
    : stream_(stream),
      records_(!config.train.record_routes.empty()),
      replays_(!config.train.replay_routes.empty() || config.rollout.router_replay),
      routers_(model.routers()),
      topk_(config.model.moe.moe_router_topk),
      weight_dtype_(accumulator(config.model.compute_dtype())) {}

void StepRoutes::allocate(const StepShape& shape) {
  micro_batches_ = shape.micro_batches;
  const Shape all = {routers_ * micro_batches_, shape.tokens, topk_};
  if (replays_) replayed_ = stream_.empty(all, DType::i32, MemoryTag::workspace);
  if (!records_) return;
  ids_ = stream_.empty(all, DType::i32, MemoryTag::workspace);
  weights_ = stream_.empty(all, weight_dtype_, MemoryTag::workspace);
}

Tensor StepRoutes::part(const Tensor& of, int64_t router) const {
  return of.narrow(0, router * micro_batches_ + micro_batch_, 1).reshape({of.size(1), of.size(2)});
}

Tensor StepRoutes::recorded(int64_t router) {
  if (micro_batch_ < 0) return other_ ? other_->recorded(router) : Tensor();
  return replays() ? part(replayed_, router) : Tensor();
}

void StepRoutes::record(Stream& stream, int64_t router, const Tensor& ids, const Tensor& weights) {
  if (micro_batch_ < 0 && other_) other_->record(stream, router, ids, weights);
  if (!records() || micro_batch_ < 0) return;
  stream.copy(part(ids_, router), ids);
  stream.copy(part(weights_, router), weights);
}

void StepRoutes::before_step(int64_t /*iteration*/) {
  if (!replays_) return;
  require<ShapeError>(static_cast<int64_t>(to_replay_.size()) == replayed_.elements() || stream_.is_meta(),
                      "replayed routes: ", to_replay_.size(), " ids, the step's tokens have ", replayed_.shape());
  stream_.write(replayed_, to_replay_.data());
}

StepRoutes::Found StepRoutes::read() const {
  const auto count = static_cast<size_t>(ids_.elements());
  Found found{std::vector<int32_t>(count), std::vector<float>(count)};
  stream_.read(found.ids.data(), ids_);
  dispatch_floating(weights_.dtype(), [&]<class A>() {
    std::vector<A> weights(count);
    stream_.read(weights.data(), weights_);
    for (size_t i = 0; i < count; ++i) found.weights[i] = static_cast<float>(weights[i]);
  });
  // A file names K experts for every token: padding, which has none, gets the first ones, with weights of 0.
  const auto K = static_cast<size_t>(ids_.shape()[2]);
  for (size_t i = 0; i < count; ++i)
    if (found.ids[i] < 0) found.ids[i] = static_cast<int32_t>(i % K);
  return found;
}

}  // namespace witan
