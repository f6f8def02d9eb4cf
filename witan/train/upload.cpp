#include "witan/train/upload.h"

#include <cstring>

namespace witan {
namespace {

template <class T>
Tensor upload(Stream& stream, const std::vector<T>& values, const Shape& shape) {
  Tensor out = stream.empty(shape, dtype_of<T>());
  if (!stream.is_meta()) std::memcpy(out.raw(), values.data(), static_cast<size_t>(out.bytes()));
  return out;
}

}  // namespace

ModelInput upload(Stream& stream, const Batch& batch) {
  const Shape shape{batch.sequences, batch.sequence_length};
  return {upload(stream, batch.tokens, shape),
          {upload(stream, batch.positions, shape), upload(stream, batch.sequence_ids, shape)}};
}

Targets upload_targets(Stream& stream, const Batch& batch, DType dtype, double denominator) {
  const Shape shape{batch.sequences * batch.sequence_length};
  const Tensor weights = stream.empty(shape, dtype);
  if (!stream.is_meta())
    dispatch_floating(dtype, [&]<class A>() {
      for (size_t i = 0; i < batch.loss_mask.size(); ++i)
        weights.data<A>()[i] = A(static_cast<double>(batch.loss_mask[i]) / denominator);
    });
  return {upload(stream, batch.targets, shape), weights};
}

double read_scalar(const Tensor& tensor) {
  if (tensor.is_meta()) return 0;
  return dispatch_floating(tensor.dtype(), [&]<class A>() { return static_cast<double>(tensor.data<A>()[0]); });
}

}  // namespace witan
