// Gradients against central differences, in float64. All gradient checks use it.
//
// An op passes if, for every input and a random weighting of all its outputs, the tape's gradient agrees with (f(x + h)
// - f(x - h)) / 2h in every element. tests/ops/coverage_test.cpp fails for ops that no test names here.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "support/rank.h"
#include "witan/autograd/tape.h"

namespace witan::testing {

using Function = std::function<std::vector<Var>(Tape&, const std::vector<Var>&)>;

// A leaf that owns its tensors, like a parameter without a module.
struct TestLeaf : Leaf {
  TestLeaf(Stream& stream, Tensor initial) : value_(std::move(initial)) {
    gradient_ = stream.empty_like(value_);
    dispatch_floating(value_.dtype(), [&]<class T>() { std::ranges::fill(gradient_.span<T>(), T(std::nanf(""))); });
  }
  const Tensor& value() override { return value_; }
  Tensor& gradient() override { return gradient_; }
  void on_gradient_ready() override { ++ready; }
  int ready = 0;

 private:
  Tensor value_, gradient_;
};

namespace gradcheck_detail {

// sum over outputs i and elements j of weight(i, j) * output_i[j]; the weights are normal random numbers.
inline Tensor output_weights(Rank& rank, const Tensor& output, size_t i) {
  return rank.normal(output.shape(), output.dtype(), "output weights " + std::to_string(i));
}

inline double weighted_sum(Rank& rank, const Function& f, const std::vector<Tensor>& inputs) {
  Tape tape(rank.stream, Tape::Mode::off);
  std::vector<Var> vars;
  for (const Tensor& input : inputs) vars.push_back(tape.constant(input));
  double sum = 0;
  const auto outputs = f(tape, vars);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!is_floating(outputs[i].dtype())) continue;
    const auto out = values(outputs[i].value()), weights = values(output_weights(rank, outputs[i].value(), i));
    for (size_t j = 0; j < out.size(); ++j) sum += out[j] * weights[j];
  }
  return sum;
}

}  // namespace gradcheck_detail

// `name` is the name under which the op records its node. Inputs are float64. `h` is the step of the difference.
inline void gradcheck(Rank& rank, const std::string& name, const Function& f, const std::vector<Tensor>& inputs,
                      double tolerance = 1e-7, double h = 1e-5) {
  using namespace gradcheck_detail;
  SCOPED_TRACE("gradcheck of " + name);
  Tape tape(rank.stream);
  std::vector<Var> vars;
  for (const Tensor& input : inputs) vars.push_back(tape.input(input));
  std::vector<std::pair<Var, Tensor>> roots;
  {
    const auto outputs = f(tape, vars);
    for (size_t i = 0; i < outputs.size(); ++i)
      if (outputs[i].needs_gradient()) roots.emplace_back(outputs[i], output_weights(rank, outputs[i].value(), i));
  }
  ASSERT_FALSE(roots.empty()) << "no output depends on an input";
  tape.backward(roots);

  for (size_t k = 0; k < inputs.size(); ++k) {
    const Tensor gradient = tape.gradient(vars[k]);
    ASSERT_TRUE(gradient.defined()) << "input " << k << " got no gradient";
    ASSERT_EQ(gradient.shape(), inputs[k].shape()) << "input " << k;
    double* x = inputs[k].data<double>();
    for (int64_t j = 0; j < inputs[k].elements(); ++j) {
      const double before = x[j];
      x[j] = before + h;
      const double above = weighted_sum(rank, f, inputs);
      x[j] = before - h;
      const double below = weighted_sum(rank, f, inputs);
      x[j] = before;
      const double expected = (above - below) / (2 * h);
      ASSERT_NEAR(values(gradient)[static_cast<size_t>(j)], expected, tolerance * std::max(1.0, std::abs(expected)))
          << "input " << k << ", element " << j;
    }
  }

  // Checks gradients of parameters: the first backward overwrites a poisoned buffer, the second accumulates.
  std::vector<std::unique_ptr<TestLeaf>> leaves;
  for (const Tensor& input : inputs) leaves.push_back(std::make_unique<TestLeaf>(rank.stream, input));
  for (int pass = 1; pass <= 2; ++pass) {
    Tape again(rank.stream);
    std::vector<Var> parameters;
    for (auto& leaf : leaves) parameters.push_back(again.parameter(*leaf));
    std::vector<std::pair<Var, Tensor>> seeds;
    const auto outputs = f(again, parameters);
    for (size_t i = 0; i < outputs.size(); ++i)
      if (outputs[i].needs_gradient()) seeds.emplace_back(outputs[i], output_weights(rank, outputs[i].value(), i));
    again.backward(seeds);
    for (size_t k = 0; k < inputs.size(); ++k) {
      auto expected = values(tape.gradient(vars[k]));
      for (double& value : expected) value *= pass;
      EXPECT_TRUE(close(values(leaves[k]->gradient()), expected, 1e-10, 1e-10))
          << "parameter " << k << ", pass " << pass;
      EXPECT_EQ(leaves[k]->ready, pass) << "gradient-ready signals of parameter " << k;
    }
  }
}

}  // namespace witan::testing
