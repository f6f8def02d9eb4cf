// The keys of a model that determine the function which its weights compute.
#pragma once

#include <string>
#include <vector>

#include "witan/model/config.h"

namespace witan {

// Whether the key determines that function. Other keys, such as dropout, loss coefficients, dtype and recomputation,
// may differ between a source of weights and a run that starts from them.
bool shapes_function(const Field& field);

// The keys of shapes_function() in which two models differ: "KEY = A, not B".
std::vector<std::string> differences(ModelConfig a, ModelConfig b);

}  // namespace witan
