// Parameters and gradients that the scripts of tests/golden/optim use too, and the files they wrote.
#pragma once

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "support/rank.h"
#include "witan/optim/optimizer.h"

namespace witan::testing {

// A float64 parameter of values i / 8, with a gradient to be filled.
struct CountedParameter {
  CountedParameter(Rank& rank, const std::string& name, const Shape& shape, bool expert = false)
      : parameter(rank.stream, {.name = name, .shape = shape, .dtype = DType::f64, .expert = expert},
                  {{0, shape.elements()}, shape}, 1) {
    for (int64_t i = 0; i < shape.elements(); ++i) at(parameter.value(), i) = static_cast<double>(i) / 8;
    parameter.bind_gradient(rank.stream.empty(shape, DType::f64));
    parameter.gradient_written = true;
  }
  static double& at(const Tensor& tensor, int64_t i) { return tensor.data<double>()[i]; }
  void fill_gradient(int64_t step) {
    for (int64_t i = 0; i < parameter.elements(); ++i)
      at(parameter.gradient(), i) =
          static_cast<double>((i * 7919 + step * 104729 + i * i * 31 + step * i * 17) % 1009) / 1009 - 0.5;
  }
  ParameterShard shard() { return {&parameter, 0, parameter.elements()}; }

  Parameter parameter;
};

inline void make_step(Rank& rank, Optimizer& optimizer, int64_t number, bool skipped = false) {
  StepState step(rank.stream);
  step.set({0.125}, number, number);
  step.tensor().data<double>()[kernels::step_value::skip] = skipped;
  optimizer.update(rank.stream, step);
}

// Values by case, step and tensor.
using GoldenUpdates = std::map<std::tuple<std::string, int64_t, std::string>, std::vector<double>>;
inline GoldenUpdates golden_updates(const std::string& name) {
  std::ifstream file(WITAN_SOURCE_DIR "/tests/golden/optim/" + name);
  std::string line;
  std::getline(file, line);
  GoldenUpdates rows;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string of, tensor;
    int64_t step = 0;
    words >> of >> step >> tensor;
    std::vector<double>& all = rows[{of, step, tensor}];
    for (double value = 0; words >> value;) all.push_back(value);
  }
  return rows;
}

// Compares ten updates of this optimizer with the file. Returns how many tensors were compared.
inline int compare_updates(const OptimizerConfig& config, const std::map<std::string, Shape>& shapes,
                           const GoldenUpdates& golden, const std::string& name, double tolerance) {
  Rank rank;
  std::map<std::string, std::unique_ptr<CountedParameter>> all;
  std::vector<ParameterShard> shards;
  for (const auto& [of, shape] : shapes) {
    all[of] = std::make_unique<CountedParameter>(rank, of, shape);
    shards.push_back(all[of]->shard());
  }
  const auto optimizer = make_optimizer(config, rank.stream, shards);
  int compared = 0;
  for (int64_t step = 1; step <= 10; ++step) {
    for (auto& [of, one] : all) one->fill_gradient(step);
    make_step(rank, *optimizer, step);
    for (auto& [of, one] : all) {
      const auto row = golden.find({name, step, of});
      if (row == golden.end()) continue;
      ++compared;
      EXPECT_TRUE(close(values(one->parameter.value()), row->second, tolerance, tolerance))
          << of << " at step " << step;
    }
  }
  return compared;
}

// Everything that an update may change.
inline std::vector<double> values_and_state(const Parameter& parameter, const Optimizer& optimizer) {
  std::vector<double> numbers = values(parameter.value());
  optimizer.visit([&](const OptimizerTensor& state) {
    for (const double value : values(state.tensor)) numbers.push_back(value);
  });
  return numbers;
}

}  // namespace witan::testing
