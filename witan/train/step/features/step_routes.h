// The routes of a step's micro-batches on the device, recorded or replayed. Like those of a step's inputs, the buffers
// keep their addresses for captured steps: replayed routes are uploaded before the step, and recorded ones are read
// after it.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "witan/model/transformer.h"
#include "witan/moe/routers/router.h"
#include "witan/train/config/config.h"
#include "witan/train/step/step_feature.h"

namespace witan {

class StepRoutes : public StepFeature, public RouteAccess {
 public:
  // For the routers that this rank holds, in the model's order. Buffers come from the stream's arena; the stream must
  // outlive it.
  StepRoutes(Stream& stream, const Transformer& model, const RunConfig& config);

  void offer(ModelServices& services) override { services.routes = this; }
  void allocate(const StepShape& shape) override;
  void release() override { replayed_ = ids_ = weights_ = {}; }
  void before_step(int64_t iteration) override;

  // Routers record and replay the micro-batch's routes in its passes. A backward replays them too, where it computes a
  // layer again. Outside of passes they have the routes of `other`, which must outlive its use; null: they choose
  // alone.
  void between_passes(RouteAccess* other) { other_ = other; }
  void begin_pass(Pass /*pass*/, int64_t micro_batch) override { micro_batch_ = micro_batch; }
  void end_pass() override { micro_batch_ = -1; }

  Tensor recorded(int64_t router) override;
  void record(Stream& stream, int64_t router, const Tensor& ids, const Tensor& weights) override;

  bool records() const { return records_; }
  bool replays() const { return replays_; }
  // The next step's ids [routers, micro-batches, T, K], on the host. before_step() throws ShapeError for another
  // number.
  void replay(std::vector<int32_t> ids) { to_replay_ = std::move(ids); }
  struct Found {
    std::vector<int32_t> ids;    // [routers, micro-batches, T, K]
    std::vector<float> weights;  // the same
  };
  Found read() const;  // the last step's, for which it waits

 private:
  Tensor part(const Tensor& of, int64_t router) const;  // [T, K], of the present micro-batch

  Stream& stream_;
  bool records_, replays_;
  int64_t routers_, topk_;
  DType weight_dtype_;
  RouteAccess* other_ = nullptr;
  std::vector<int32_t> to_replay_;
  Tensor replayed_, ids_, weights_;  // [routers * micro-batches, T, K]; undefined: not wanted
  int64_t micro_batches_ = 0, micro_batch_ = -1;
};

}  // namespace witan
