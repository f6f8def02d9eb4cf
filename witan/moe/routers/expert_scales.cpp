#include "witan/moe/routers/expert_scales.h"

#include "witan/base/error.h"
#include "witan/kernels/pointwise/elementwise.h"
#include "witan/kernels/vocabulary/vocabulary.h"

namespace witan::ops {

// A factor is a row of one channel, which is looked up by the expert's number. Sums of gradients have embeddings'
// order.
Var scale_by_expert(Tape& tape, const Var& weights, const Tensor& ids, const Var& scale) {
  require<ShapeError>(weights.shape().dims() == 2 && is_floating(weights.dtype()) && weights.value().contiguous(),
                      "expert_scales: weights must be [T, K], floating and contiguous, got ", weights.dtype(), " ",
                      weights.shape());
  require<ShapeError>(ids.shape() == weights.shape() && ids.dtype() == DType::i32, "expert_scales: ids must be int32 ",
                      weights.shape(), ", got ", ids.dtype(), " ", ids.shape());
  require<ShapeError>(scale.shape().dims() == 1 && scale.dtype() == weights.dtype(), "expert_scales: scale must be ",
                      weights.dtype(), " [E], got ", scale.dtype(), " ", scale.shape());
  Stream& s = tape.stream();
  const int64_t E = scale.size(0), count = ids.elements();
  const Tensor factors = s.empty_like(weights.value()), y = s.empty_like(weights.value());
  kernels::embedding_forward(s, factors.reshape({count, 1}), ids.reshape({count}), scale.value().reshape({E, 1}));
  kernels::product(s, y, weights.value(), factors);
  return tape.record("expert_scales", y, {weights, scale},
                     [weights = tape.save(weights), factors = tape.save(factors), scale = tape.slot(scale),
                      ids = tape.save(ids), E, count](Backward& b, const Tensor& dy) {
                       Stream& stream = b.stream();
                       b.write(scale, [&](const Tensor& dscale, Write how) {
                         const Tensor products = stream.empty(dy.shape(), dy.dtype(), MemoryTag::workspace);
                         kernels::product(stream, products, dy, b.value(weights));
                         const Tensor order = stream.empty({E + 1 + count}, DType::i32, MemoryTag::workspace);
                         kernels::embedding_backward(stream, dscale.reshape({E, 1}), how, order,
                                                     products.reshape({count, 1}), b.value(ids).reshape({count}));
                       });
                       if (!b.wants(weights)) return;
                       const Tensor dweights = stream.empty_like(dy);
                       kernels::product(stream, dweights, dy, b.value(factors));
                       b.add(weights, dweights);
                     });
}

}  // namespace witan::ops
