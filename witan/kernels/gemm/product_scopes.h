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

}  // namespace witan::kernels
