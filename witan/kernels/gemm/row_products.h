// Products whose rows do not know each other. A library's kernel depends on how many rows a product has, and with it
// the order of its sums: where a token's numbers must not depend on the tokens beside it, as when a text that is
// generated token by token is held against the same text in training, the choice is made for a fixed number of rows.
#pragma once

namespace witan::kernels {

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
