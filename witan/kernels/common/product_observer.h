// Observes the inputs of products with weights, for calibration.
#pragma once

#include "witan/tensor/observer.h"
#include "witan/tensor/ragged.h"

namespace witan {

class ProductObserver : public KernelObserver {
 public:
  // y = x w^T is computed next: x [T, K], w [N, K].
  virtual void product(const Tensor& x, const Tensor& w) = 0;
  // The rows of a grouped product: row i is row index[i] / divisor of x, or row i where the index is undefined.
  struct Rows {
    const Tensor &x, &index;
    int64_t divisor;
  };
  // The product of the rows of group e with w[e] is computed next for each group; w [E, N, K].
  virtual void grouped_product(const Rows& rows, const RowGroups& groups, const Tensor& w) = 0;

  void kernel(Stream&, const char*, const Cost&, int64_t, int64_t) override {}

  // The stream's observer if it is a ProductObserver, else null.
  static ProductObserver* of(const Stream& stream) {
    return stream.observer() == nullptr ? nullptr : dynamic_cast<ProductObserver*>(stream.observer());
  }
};

}  // namespace witan
