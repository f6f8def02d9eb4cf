// Scopes that decide which GPU kernels compute this thread's matrix products.
#pragma once

#include <cstdint>

namespace witan::kernels {

// While one exists, this thread's products of few rows (gemm and gemm_with_bias with a transposed weight, wide_linear,
// the forward products of experts) use kernels that read each weight once, if these take the shapes. Steps of
// generation spend their time on reading weights. The order of sums follows from shapes alone, and a row has the same
// bits whatever rows come with it, but not the bits of the kernels for many rows: training never uses them. Within
// RowProducts, which promises the bits of training, other kernels have these: for 16-bit numbers, on Hopper.
class FewRows {
 public:
  explicit FewRows(bool on = true);
  ~FewRows();
  FewRows(const FewRows&) = delete;
  FewRows& operator=(const FewRows&) = delete;

  static bool on();  // on this thread

  static constexpr int64_t kMost = 16;            // rows of a product
  static constexpr int64_t kMostColumns = 16384;  // of the result, without RowProducts: with more, others fill a GPU
  static constexpr int64_t kMostWide = 64;        // rows of wide_linear
  static constexpr int64_t kMostPerExpert = 4;    // rows of the pool, divided by the number of experts

 private:
  bool before_;
};

// While one exists, this thread's products (gemm and gemm_with_bias of untransposed rows, on CUDA) use an algorithm
// that does not depend on the number of rows and that forms each sum as a whole, so that a token's numbers do not
// depend on the tokens beside it: a text that is generated token by token has the bits of the same text in training. A
// library chooses its kernel, and the order of sums, by the number of rows otherwise. It costs speed. The CPU's
// products, those of experts and those of routers are always independent of other rows.
class RowProducts {
 public:
  explicit RowProducts(bool on = true);
  ~RowProducts();
  RowProducts(const RowProducts&) = delete;
  RowProducts& operator=(const RowProducts&) = delete;

  static bool on();  // on this thread

 private:
  bool before_;
};

}  // namespace witan::kernels
