// The routes of a step's micro-batches on the device, recorded or replayed. As with a step's inputs the buffers keep
// their addresses, so that a captured step finds them: what is replayed is uploaded before the step, what was recorded
// is read after it, and the host is in no step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "witan/model/transformer.h"
#include "witan/moe/routes.h"
#include "witan/train/run/config.h"

namespace witan {

class StepRoutes : public RouteAccess {
 public:
  // For the routers that this rank holds, in the model's order.
  StepRoutes(const Transformer& model, const RunConfig& config);

  // Buffers for steps of so many micro-batches, of so many tokens of this rank each, from the stream's arena.
  void allocate(Stream& stream, int64_t micro_batches, int64_t tokens);
  void release();

  // Between these two routers record and replay the micro-batch's routes; outside of them they choose alone.
  void begin(int64_t micro_batch) { micro_batch_ = micro_batch; }
  void end() { micro_batch_ = -1; }

  Tensor recorded(int64_t router) override;
  void record(Stream& stream, int64_t router, const Tensor& ids, const Tensor& weights) override;

  bool records() const { return records_; }
  bool replays() const { return replays_; }
  // ids [routers, micro-batches, T, K] of the next step, on the host. Throws ShapeError for another number.
  void upload(Stream& stream, std::span<const int32_t> ids);
  struct Found {
    std::vector<int32_t> ids;    // [routers, micro-batches, T, K]
    std::vector<float> weights;  // the same
  };
  Found read(Stream& stream) const;  // waits for the step

 private:
  Tensor part(const Tensor& of, int64_t router) const;  // [T, K], of the present micro-batch

  bool records_, replays_;
  int64_t routers_, topk_;
  DType weight_dtype_;
  Tensor replayed_, ids_, weights_;  // [routers * micro-batches, T, K]; undefined: not wanted
  int64_t micro_batches_ = 0, micro_batch_ = -1;
};

}  // namespace witan
