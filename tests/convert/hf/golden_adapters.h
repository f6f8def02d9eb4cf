// Folders of adapters that PEFT made (tests/golden/lora/make_golden.py), and the numbers of their tensors.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "convert/convert_support.h"

namespace witan::testing {

inline fs::path golden_adapters(const std::string& model) {
  return fs::path(WITAN_SOURCE_DIR) / "tests/golden/lora" / model;
}

inline bool in_double(const OwnTensors& tensors, const std::string& name) {
  return tensors.at(name).info.dtype == "F64";
}
inline std::vector<double> reals(const OwnTensors& tensors, const std::string& name) {
  const auto& bytes = tensors.at(name).bytes;
  const auto as = [&](auto one) {
    std::vector<decltype(one)> values(bytes.size() / sizeof one);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return std::vector<double>(values.begin(), values.end());
  };
  return in_double(tensors, name) ? as(double()) : as(float());
}

}  // namespace witan::testing
