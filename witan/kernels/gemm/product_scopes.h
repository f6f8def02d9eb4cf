// Products of few rows with weights, as in steps of generation, which wait for the weights alone. Their kernels read
// each weight once, in pieces of sums whose order shapes alone decide; a row has the same bits whatever rows came with
// it, but not those that the kernels for many rows give it: training never takes them.
#pragma once

#include <cstdint>

namespace witan::kernels {

// While one exists, on CUDA the products of this thread with few rows (of gemm and gemm_with_bias with a transposed
// weight, of wide_linear, of the forward products of experts) go to kernels made for them, where these take them; not
// within RowProducts, whose bits are training's.
class FewRows {
 public:
  explicit FewRows(bool on = true);
  ~FewRows();
  FewRows(const FewRows&) = delete;
  FewRows& operator=(const FewRows&) = delete;

  static bool on();  // on this thread

  static constexpr int64_t kMost = 16;            // of a product
  static constexpr int64_t kMostColumns = 16384;  // of its result: kernels for many rows fill a GPU with more
  static constexpr int64_t kMostWide = 64;        // of wide_linear
  static constexpr int64_t kMostPerExpert = 4;    // in the mean over all experts, of what a pool has room for

 private:
  bool before_;
};

// Products whose rows do not know each other. A library's kernel depends on how many rows a product has, and with it
// the order of its sums: where a token's numbers must not depend on the tokens beside it, as when a text that is
// generated token by token is held against the same text in training, the choice is made for a fixed number of rows.

// While one exists, products of this thread (gemm and gemm_with_bias of untransposed rows, on CUDA) take an algorithm
// that is chosen whatever the number of rows, and that forms each sum as a whole. It costs speed. The CPU's products,
// those of experts and those of routers are always like that.
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
