// Which of a model's keys decide what its weights compute.
#pragma once

#include <string>
#include <vector>

#include "witan/model/config.h"

namespace witan {

// Whether the key decides which function the weights are of; others, such as dropout, the coefficients of losses, dtype
// and recomputation, may differ between a source of weights and a run that starts from them.
bool shapes_function(const Field& field);

// The keys of shapes_function() in which two models differ: "KEY = A, not B".
std::vector<std::string> differences(ModelConfig a, ModelConfig b);

}  // namespace witan
