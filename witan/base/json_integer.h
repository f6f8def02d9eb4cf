// Whole numbers of JSON that was written by another process, or damaged since.
#pragma once

#include <cstdint>

#include "witan/base/json.h"

namespace witan {

// The whole number in [least, most] that `value` is. nlohmann's own get<int64_t>() takes fractions too, and what is out
// of range has no defined value there. Throws nlohmann::json::out_of_range.
int64_t json_integer(const Json& value, int64_t least = 0, int64_t most = int64_t{1} << 60);

}  // namespace witan
