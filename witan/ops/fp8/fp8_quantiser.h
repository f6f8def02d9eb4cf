// The scaling of the operands of one weight's products in 8 bits: by blocks, by tensors now, or by tensors as
// they were in earlier steps (docs/numerics.md).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "witan/kernels/fp8/fp8.h"
#include "witan/ops/fp8/fp8_kept.h"

namespace witan::ops {

struct Fp8Recipe {
  enum class Scales : uint8_t {
    blockwise,   // a scale for each 128 numbers along the sum, of weights for each 128 by 128
    tensorwise,  // one for each tensor, by its largest magnitude; of experts one for each and each source of its rows
    delayed,     // one for each tensor and expert, by largest magnitudes of earlier steps
  };
  Scales scales = Scales::blockwise;
  kernels::Fp8Format gradients = kernels::Fp8Format::e4m3;  // those of outputs, in both of their products
  // For delayed scales: the number of steps that count, the last one included, and the factor of their magnitude.
  int64_t history = 1;
  double factor = 1;
};

// The three operands of a weight's products, which are the rows of Fp8Magnitudes.
enum class Fp8Operand : uint8_t { input, weight, gradient };
inline constexpr int64_t kFp8Operands = 3;

// The magnitudes for delayed scales: [kFp8Operands, E] float32 of all experts, of which this rank has some; a matrix
// has E = 1.
struct Fp8Magnitudes {
  Tensor references;             // the magnitudes by which tensors are scaled; 0: none yet
  std::function<Tensor()> seen;  // records the magnitudes of this step; empty: they are not recorded
  int64_t first = 0, count = 1;  // experts

  Tensor of(const Tensor& all, Fp8Operand operand) const {
    return all.defined()
               ? all.narrow(0, static_cast<int64_t>(operand), 1).reshape({all.size(1)}).narrow(0, first, count)
               : Tensor();
  }
};

class Fp8Quantiser {
 public:
  // Whether the magnitudes of an operand count for later steps: those of a training step do, once each.
  enum class Noted : uint8_t { no, yes };

  // `kept`: where the weight's copies are kept while a round lasts; null: they are made for each use. `magnitudes`: of
  // delayed scales.
  explicit Fp8Quantiser(const Fp8Recipe& recipe = {}, std::unique_ptr<Fp8KeptWeight> kept = nullptr,
                        Fp8Magnitudes magnitudes = {})
      : recipe_(recipe), kept_(std::move(kept)), magnitudes_(std::move(magnitudes)) {}

  bool blockwise() const { return recipe_.scales == Fp8Recipe::Scales::blockwise; }
  kernels::Fp8Format format(Fp8Operand operand) const {
    return operand == Fp8Operand::gradient ? recipe_.gradients : kernels::Fp8Format::e4m3;
  }

  kernels::Fp8Rows empty_rows(Stream& stream, Fp8Operand operand, int64_t M, int64_t K) const {
    return kernels::Fp8Rows::empty(stream, M, K, format(operand));
  }
  kernels::Fp8Columns empty_columns(Stream& stream, Fp8Operand operand, const kernels::Fp8RowBlocks& blocks,
                                    int64_t K) const {
    return kernels::Fp8Columns::empty(stream, blocks, K, format(operand));
  }

  // kernels::fp8_quantise() by this recipe.
  void quantise(Stream& stream, Fp8Operand operand, Noted noted, const kernels::Fp8Rows& rows,
                const kernels::Fp8Columns& columns, const Tensor& x, const kernels::Fp8RowBlocks& blocks,
                const RowIndex& x_rows = {}) const;
  // w [E, N, K] in 8 bits, or its transpose; both if they are kept.
  kernels::Fp8Weights weights(Stream& stream, Noted noted, const Tensor& w, bool transposed) const;

 private:
  // Replaces amax by the delayed magnitude of the operand.
  void delay(Stream& stream, Fp8Operand operand, Noted noted, const Tensor& amax) const;

  Fp8Recipe recipe_;
  std::unique_ptr<Fp8KeptWeight> kept_;
  Fp8Magnitudes magnitudes_;
};

}  // namespace witan::ops
