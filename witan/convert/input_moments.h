// Second moments of the inputs of a model's matrices, for quantising them with calibration (elements/error_feedback.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "witan/kernels/common/product_observer.h"
#include "witan/nn/parameter.h"
#include "witan/tensor/tensor.h"

namespace witan {

// Adds up x xᵀ over the inputs x of matrices while a stream that it observes runs forwards on the CPU. Matrices that
// one product multiplies, such as the projections of queries, keys and values, share theirs.
class InputMoments : public ProductObserver {
 public:
  // The parameters, matrices [N, K] or stacks [E, N, K] of them, must outlive it.
  InputMoments(const std::vector<const Parameter*>& parameters, ThreadPool& pool);

  // The bytes of a parameter's moments: [K, K] float32 for each matrix.
  static int64_t bytes_of(const Parameter& parameter);

  void product(const Tensor& x, const Tensor& w) override;
  void grouped_product(const Rows& rows, const RowGroups& groups, const Tensor& w) override;

  bool collects(const std::string& parameter) const;
  // The moments [K, K] of a matrix of the parameter, counted from 0; empty if it had no input.
  std::span<const float> of(const std::string& parameter, int64_t matrix) const;

 private:
  struct Sums {
    Tensor moments;               // [E, K, K] float32
    std::vector<int64_t> inputs;  // of each matrix
  };
  // The sums of the parameter whose value begins at w or contains it, and the number of w's first matrix there; null if
  // w belongs to another parameter.
  std::pair<Sums*, int64_t> find(const Tensor& w);
  void add(Sums& to, int64_t matrix, const Tensor& x, std::span<const int64_t> rows);

  Stream stream_;
  std::map<const std::byte*, const Parameter*> places_;  // by the first byte of the value
  std::map<std::string, std::shared_ptr<Sums>> sums_;    // by parameter; missing: no input so far
};

}  // namespace witan
