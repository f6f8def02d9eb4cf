#include "witan/train/step/upload.h"

namespace witan {
namespace {

template <class T>
Tensor upload(Stream& stream, const std::vector<T>& values, const Shape& shape) {
  Tensor out = stream.empty(shape, dtype_of<T>());
  stream.write(out, values.data());
  return out;
}

}  // namespace

ModelInput upload(Stream& stream, const Batch& batch, bool padded) {
  const Shape shape{batch.sequences, batch.sequence_length};
  ModelInput input{upload(stream, batch.tokens, shape),
                   {upload(stream, batch.positions, shape), upload(stream, batch.sequence_ids, shape)}};
  input.padded = padded;
  return input;
}

Targets upload_targets(Stream& stream, const Batch& batch, DType dtype, double denominator) {
  const Shape shape{batch.sequences * batch.sequence_length};
  const Tensor weights = stream.empty(shape, dtype);
  dispatch_floating(dtype, [&]<class A>() {
    std::vector<A> values;
    for (const float mask : batch.loss_mask) values.push_back(A(static_cast<double>(mask) / denominator));
    stream.write(weights, values.data());
  });
  return {upload(stream, batch.targets, shape), weights};
}

double read_scalar(Stream& stream, const Tensor& tensor) {
  return dispatch_floating(tensor.dtype(), [&]<class A>() {
    A value = A(0.0f);
    stream.read(&value, tensor);
    return static_cast<double>(value);
  });
}

}  // namespace witan
