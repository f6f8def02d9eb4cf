// Updates of one parameter, with names for its state; on a GPU with a table of their own.
#pragma once

#include "witan/kernels/common/device_table.h"
#include "witan/kernels/optimizer/optimizer.h"

namespace witan::testing {

struct AdamWTensors {
  Tensor value, remainder, m, v, gradient;
  kernels::UpdateTensors update() const { return {value, remainder, {m, v}, gradient}; }
};
struct SgdTensors {
  Tensor value, remainder, momentum, gradient;
  kernels::UpdateTensors update() const { return {value, remainder, {momentum}, gradient}; }
};

struct AdamWSettings {
  double beta1, beta2, eps, weight_decay;
  int64_t rate = kernels::step_value::learning_rate;
};
struct SgdSettings {
  double momentum, weight_decay;
  int64_t rate = kernels::step_value::learning_rate;
};

// kernel(stream, items, table, step, args), as kernels/optimizer/optimizer.h has them.
template <class Kernel, class Args>
void update_with(const Kernel& kernel, Stream& stream, const std::vector<kernels::UpdateItem>& items,
                 const Tensor& step, const Args& args) {
  kernels::DeviceTable table(stream, static_cast<int64_t>(items.size()) * kernels::kUpdateColumns,
                             MemoryTag::workspace);
  kernel(stream, items, table.holding(stream, kernels::update_table(items)), step, args);
  stream.wait();  // before the table goes
}

inline void adamw(Stream& stream, const AdamWTensors& t, const Tensor& step, const AdamWSettings& s) {
  update_with(kernels::adamw_all, stream, {{t.update(), s.weight_decay}}, step,
              kernels::AdamWArgs{s.beta1, s.beta2, s.eps, s.rate});
}
inline void sgd(Stream& stream, const SgdTensors& t, const Tensor& step, const SgdSettings& s) {
  update_with(kernels::sgd_all, stream, {{t.update(), s.weight_decay}}, step, kernels::SgdArgs{s.momentum, s.rate});
}

}  // namespace witan::testing
