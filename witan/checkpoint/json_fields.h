// Reads values from untrusted JSON. Each function checks what it returns and throws CheckpointError("WHERE: …").
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "witan/base/json.h"
#include "witan/tensor/dtype.h"
#include "witan/tensor/shape.h"

namespace witan {

// Parses an object. Duplicate keys, nesting deeper than `max_depth` and malformed text are errors.
Json parse_object(std::string_view text, std::string_view where, int max_depth);

const Json& member(const Json& object, const char* key, std::string_view where);
const Json& object_member(const Json& object, const char* key, std::string_view where);
const Json& array_member(const Json& object, const char* key, std::string_view where);
const std::string& text_member(const Json& object, const char* key, std::string_view where);
int64_t integer_member(const Json& object, const char* key, std::string_view where, int64_t least = 0,
                       int64_t most = std::numeric_limits<int64_t>::max());
// A list of sizes. Their product times the bytes per element must fit an int64_t, in whatever order it is formed.
Shape shape_member(const Json& object, const char* key, int64_t element_bytes, std::string_view where);
inline Shape shape_member(const Json& object, const char* key, DType dtype, std::string_view where) {
  return shape_member(object, key, size_of(dtype), where);
}

// An integer in [least, most]; `what` names it in messages.
int64_t integer_from(const Json& value, std::string_view what, std::string_view where, int64_t least = 0,
                     int64_t most = std::numeric_limits<int64_t>::max());

}  // namespace witan
