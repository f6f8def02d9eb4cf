// Values of the keys that a config.json does not have: each architecture has its own, those of its configuration class
// in transformers 5.24 (tests/golden/convert/defaults.json).
#pragma once

#include <string_view>

#include "witan/base/json.h"

namespace witan {

// An object with the keys that Witan reads and that have a default other than null. The model_type must be one of
// architectures().
const Json& hf_defaults(std::string_view model_type);

}  // namespace witan
