// Values of a configuration as JSON for programs.
#pragma once

#include <nlohmann/json.hpp>

#include "witan/base/config/fields.h"

namespace witan::cli {

// true, 7, 0.5, "text"; lists of paths, of numbers and of layers as arrays, also those of one path; tables as objects.
nlohmann::ordered_json json_value(const Field& field);

}  // namespace witan::cli
