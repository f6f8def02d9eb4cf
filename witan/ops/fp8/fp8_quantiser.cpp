#include "witan/ops/fp8/fp8_quantiser.h"

namespace witan::ops {

using kernels::Fp8Columns;
using kernels::Fp8RowBlocks;
using kernels::Fp8Rows;
using kernels::Fp8Weights;

void Fp8Quantiser::quantise(Stream& stream, Fp8Operand operand, Noted noted, const Fp8Rows& rows,
                            const Fp8Columns& columns, const Tensor& x, const Fp8RowBlocks& blocks,
                            const RowIndex& x_rows) const {
  if (blockwise()) return kernels::fp8_quantise(stream, rows, columns, x, blocks, {x_rows});
  const Tensor amax = stream.zeros({blocks.number()}, DType::f32);
  kernels::fp8_amax(stream, amax, x, blocks, x_rows);
  delay(stream, operand, noted, amax);
  kernels::fp8_quantise(stream, rows, columns, x, blocks, {x_rows, amax});
}

Fp8Weights Fp8Quantiser::weights(Stream& stream, Noted noted, const Tensor& w, bool transposed) const {
  const auto quantise = [&](const Fp8Weights& to) {
    Tensor amax;
    if (!blockwise()) {
      amax = stream.zeros({w.size(0)}, DType::f32);
      kernels::fp8_weight_amax(stream, amax, w);
      delay(stream, Fp8Operand::weight, noted, amax);
    }
    kernels::fp8_quantise_weights(stream, to, w, amax);
  };
  if (kept_ && kept_->keeps()) return kept_->value(quantise);
  const int64_t E = w.size(0), N = w.size(1), K = w.size(2);
  Fp8Weights out{transposed ? Tensor() : stream.empty({E, N, K}, DType::f8),
                 transposed ? stream.empty({E, K, N}, DType::f8) : Tensor(),
                 stream.empty({E, kernels::fp8_blocks(N), kernels::fp8_blocks(K)}, DType::f32)};
  quantise(out);
  return out;
}

void Fp8Quantiser::delay(Stream& stream, Fp8Operand operand, Noted noted, const Tensor& amax) const {
  if (recipe_.scales != Fp8Recipe::Scales::delayed) return;
  const Tensor seen = noted == Noted::yes && magnitudes_.seen ? magnitudes_.seen() : Tensor();
  kernels::fp8_delay(stream, amax, magnitudes_.of(seen, operand), magnitudes_.of(magnitudes_.references, operand));
}

}  // namespace witan::ops
