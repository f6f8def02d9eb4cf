// Parameters with gradients, without a model around them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "support/rank.h"
#include "witan/nn/parameter.h"

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

}  // namespace witan::testing
