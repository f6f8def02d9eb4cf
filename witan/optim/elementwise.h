// Base class of optimizers that update element by element: all shards of a parameter group at once, wherever chunks of
// elements are cut.
#pragma once

#include <span>

#include "witan/kernels/common/device_table.h"
#include "witan/optim/group_optimizer.h"

namespace witan {

class ElementwiseOptimizer : public GroupOptimizer {
 protected:
  ElementwiseOptimizer(const ParamGroup& group, size_t index, Stream& stream,
                       std::vector<ParameterShard> parameter_shards);

 private:
  void update_shards(Stream& stream, const Tensor& step, int64_t rate) final;
  // By a kernel of kernels/optimizer/optimizer.h, whose arguments these are; each item's state in the order of the
  // traits.
  virtual void update_items(Stream& stream, std::span<const kernels::UpdateItem> items, const Tensor& table,
                            const Tensor& step, int64_t rate) = 0;

  kernels::DeviceTable table_;
};

}  // namespace witan
