// Uploads micro-batches to the device, and downloads scalars.
#pragma once

#include "witan/data/batches/batch.h"
#include "witan/model/transformer.h"

namespace witan {

// tokens, positions and sequence ids [B, S]. On the meta device the batch needs only its sizes. `padded`: some
// positions may be padding.
ModelInput upload(Stream& stream, const Batch& batch, bool padded);

// targets [T] int32, T = B S, and what each counts in the loss, [T] of `dtype`: its mask over `denominator`.
struct Targets {
  Tensor targets, weights;
};
Targets upload_targets(Stream& stream, const Batch& batch, DType dtype, double denominator);

// The host's view of a floating-point scalar, which it waits for; 0 on the meta device.
double read_scalar(Stream& stream, const Tensor& tensor);

}  // namespace witan
