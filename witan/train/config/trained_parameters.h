// The parameters of a run's model, and which of them are trained, as known before anything runs.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "witan/nn/parameter.h"
#include "witan/train/config/config.h"

namespace witan {

// The specifications of all parameters, as one rank would hold them. The model must be valid.
std::vector<ParameterSpec> all_parameters(const ModelConfig& model);

// The parameters by kind: "norms (layers.*.norm.weight, norm.weight), ...". Names that differ only by a number are
// merged.
std::string describe_parameters(const std::vector<ParameterSpec>& specs);

struct TrainedParameters {
  int64_t all = 0, experts = 0;        // trained elements of the whole model, and those of them in experts
  int64_t held = 0, held_experts = 0;  // frozen elements included
  // Frozen elements that are kept as codes, by the name of their format, and the bytes of these codes.
  struct Coded {
    int64_t elements = 0, bytes = 0;
  };
  std::map<std::string, Coded> coded = {};
};
TrainedParameters count_trained(const ModelConfig& model);

// Throws ConfigError, listing the parameters of the model, for a pattern of `freeze` that matches none and for a target
// of adapters that the model does not have; and if every parameter is frozen.
void check_trained(const ModelConfig& model);

}  // namespace witan
