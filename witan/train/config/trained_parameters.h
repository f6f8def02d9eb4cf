// Which parameters of a run's model are trained, and what parameters there are, before anything runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "witan/nn/parameter.h"
#include "witan/train/config/config.h"

namespace witan {

// The specifications of all parameters, as one rank would hold them. The model must be valid.
std::vector<ParameterSpec> all_parameters(const ModelConfig& model);

// "norms (layers.*.norm.weight, norm.weight), ...": what there is, by kind; names that differ only by a number are one.
std::string what_there_is(const std::vector<ParameterSpec>& specs);

struct TrainedParameters {
  int64_t all = 0, experts = 0;        // elements of the whole model, and of them those in experts
  int64_t held = 0, held_experts = 0;  // the same of frozen ones too
};
TrainedParameters count_trained(const ModelConfig& model);

// Throws ConfigError for a pattern of `freeze` that names no parameter and for a target of adapters that the model does
// not have, with what there is, and where nothing is left to train.
void check_trained(const ModelConfig& model);

}  // namespace witan
