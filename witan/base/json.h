// JSON as Witan reads it: strict, bounded in depth, without duplicate keys; errors name the source and the byte.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace witan {

using Json = nlohmann::json;

// Parses one JSON text (RFC 8259). Throws CorruptionError("SOURCE: byte N: why") for malformed text, invalid UTF-8, a
// duplicate key, or nesting deeper than `max_depth`. Include <nlohmann/json.hpp> to use the result.
Json parse_json(std::string_view text, std::string_view source, int max_depth = 64);

// The whole number in [least, most] that `value` is. nlohmann's own get<int64_t>() takes fractions too, and what is out
// of range has no defined value there. Throws nlohmann::json::out_of_range.
int64_t json_integer(const Json& value, int64_t least = 0, int64_t most = int64_t{1} << 60);

}  // namespace witan
