// A few parameters laid out over thread ranks, without a model around them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "support/thread_world.h"
#include "witan/model/unit.h"
#include "witan/parallel/groups.h"

namespace witan::testing {

inline Layout layout_of(int world, int64_t expert_ranks, int64_t num_experts = 8) {
  ParallelConfig config;
  config.expert_model_parallel_size = expert_ranks;
  return {config, world, num_experts};
}

// The parameters of a block in model order, with 8 experts.
inline std::vector<ParameterSpec> small_specs(DType dtype = DType::f32) {
  return {{.name = "embedding", .shape = {30, 7}, .dtype = dtype},
          {.name = "experts.up", .shape = {8, 5, 7}, .dtype = dtype, .expert = true},
          {.name = "experts.down", .shape = {8, 7, 5}, .dtype = dtype, .expert = true},
          {.name = "norm", .shape = {7}, .dtype = dtype, .init = {Initialization::Kind::ones}, .weight_decay = false},
          {.name = "head", .shape = {30, 7}, .dtype = dtype}};
}

struct SmallModel {
  SmallModel(Stream& stream, const std::vector<ParameterSpec>& specs, const Groups& groups) {
    for (const ParameterSpec& spec : specs) {
      owned.push_back(std::make_unique<Parameter>(stream, spec, groups.layout().part(spec, groups.rank()), 1));
      parameters.push_back(owned.back().get());
    }
  }
  // By ParameterSpec::unit: the first unit is the embedding, the last one the head, and those between them are blocks.
  std::vector<Unit> units() const {
    std::vector<Unit> all;
    for (Parameter* parameter : parameters) {
      const int number = parameter->spec().unit;
      if (all.empty() || all.back().number != number)
        all.push_back({Unit::Kind::block, number, "unit " + std::to_string(number), parameter->spec().chunk});
      all.back().parameters.push_back(parameter);
    }
    all.front().kind = Unit::Kind::embedding;
    if (all.size() > 1) all.back().kind = Unit::Kind::head;
    return all;
  }
  Parameter& named(const std::string& name) {
    for (Parameter* parameter : parameters)
      if (parameter->name() == name) return *parameter;
    throw ShapeError("no parameter " + name);
  }

  std::vector<std::unique_ptr<Parameter>> owned;
  std::vector<Parameter*> parameters;
};

// A rank's summand for element i of the global tensor.
inline double summand(const std::string& name, int rank, int64_t i) {
  return Philox(5, Philox::stream_of(name + std::to_string(rank))).normal(static_cast<uint64_t>(i));
}

// Adds the rank's summand, as a backward pass does: the first writer overwrites.
inline void write_summand(Parameter& parameter, int rank) {
  dispatch_floating(parameter.gradient().dtype(), [&]<class T>() {
    T* to = parameter.gradient().data<T>();
    for (int64_t i = 0; i < parameter.elements(); ++i) {
      const T before = parameter.gradient_written ? to[i] : T(0.0f);
      to[i] = static_cast<T>(before + summand(parameter.name(), rank, parameter.region().global(i)));
    }
  });
  parameter.gradient_written = true;
}

}  // namespace witan::testing
