// Where a TOML file sets its keys.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "witan/base/config/fields.h"

namespace witan {

// The line, counted from 1, on which each of the fields' keys is set; of [[optimizer.groups]] the first table's. Keys
// are found as by parse_toml(), which has to accept the text: what it would refuse is left out here. Throws ConfigError
// where the text is no TOML.
std::map<std::string, int64_t> lines_of_keys(const Fields& fields, std::string_view toml, std::string_view source);

}  // namespace witan
