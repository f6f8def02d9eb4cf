// Parameters with gradients, without a model around them.
#pragma once

#include <cmath>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "support/rank.h"
#include "witan/nn/parameter.h"
#include "witan/optim/optimizer.h"

namespace witan::testing {

// One parameter whose gradient is bound and holds normal values.
inline std::unique_ptr<Parameter> parameter_with_gradient(Rank& rank, ParameterSpec spec,
                                                          DType gradient_dtype = DType::f32) {
  const auto whole = spec.whole();
  auto parameter = std::make_unique<Parameter>(rank.stream, std::move(spec), whole, 1);
  parameter->bind_gradient(rank.normal(parameter->value().shape(), gradient_dtype, "gradient of " + parameter->name()));
  parameter->gradient_written = true;
  return parameter;
}

// Compares an optimizer's updates with those of its original in tests/golden/optim/updates.tsv under that name
// (make_golden.py): five numbers in float64, split over two shards.
inline void expect_golden_updates(const OptimizerConfig& config, const std::string& name) {
  Rank rank(1);
  Parameter parameter(rank.stream, {"p", {5}, DType::f64}, {{0, 5}, {5}}, 1);
  parameter.bind_gradient(rank.stream.empty({5}, DType::f64, MemoryTag::gradients));
  const std::vector<double> start = {0.5, -1, 2, 0, 1.5};
  std::ranges::copy(start, parameter.value().data<double>());
  const auto optimizer = make_optimizer(config, rank.stream, {{&parameter, 0, 2}, {&parameter, 2, 3}});
  StepState state(rank.stream);

  std::ifstream golden(std::string(WITAN_SOURCE_DIR) + "/tests/golden/optim/updates.tsv");
  std::string line, of;
  std::getline(golden, line);
  int64_t steps = 0, step = 0;
  std::vector<double> expected(5);
  while (golden >> of >> step >> expected[0] >> expected[1] >> expected[2] >> expected[3] >> expected[4]) {
    if (of != name) continue;
    ++steps;
    for (int i = 0; i < 5; ++i)
      parameter.gradient().data<double>()[i] = std::sin(3.7 * static_cast<double>(step) + 1.3 * i) * (1 + i);
    state.set({1e-2}, step, step);
    optimizer->update(rank.stream, state);
    EXPECT_TRUE(close(values(parameter.value()), expected, 1e-12, 1e-12)) << name << " " << step;
  }
  EXPECT_EQ(steps, 30) << name;
}

}  // namespace witan::testing
