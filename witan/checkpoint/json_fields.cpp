#include "witan/checkpoint/json_fields.h"

#include <algorithm>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {
namespace {

std::string shown(const Json& value) {
  if (value.is_structured()) return cat(value.type_name());
  return clipped(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace

Json parse_object(std::string_view text, std::string_view where, int max_depth) {
  Json value;
  try {
    value = parse_json(text, where, max_depth);
  } catch (const CorruptionError& e) {
    throw CheckpointError(e.what());
  }
  require<CheckpointError>(value.is_object(), where, ": expected a JSON object, found ", value.type_name());
  return value;
}

const Json& member(const Json& object, const char* key, std::string_view where) {
  const auto found = object.find(key);
  require<CheckpointError>(found != object.end(), where, ": \"", key, "\" is missing");
  return *found;
}

const Json& object_member(const Json& object, const char* key, std::string_view where) {
  const Json& value = member(object, key, where);
  require<CheckpointError>(value.is_object(), where, ": \"", key, "\" must be an object, found ", shown(value));
  return value;
}

const Json& array_member(const Json& object, const char* key, std::string_view where) {
  const Json& value = member(object, key, where);
  require<CheckpointError>(value.is_array(), where, ": \"", key, "\" must be a list, found ", shown(value));
  return value;
}

const std::string& text_member(const Json& object, const char* key, std::string_view where) {
  const Json& value = member(object, key, where);
  require<CheckpointError>(value.is_string(), where, ": \"", key, "\" must be a string, found ", shown(value));
  return value.get_ref<const std::string&>();
}

int64_t integer_from(const Json& value, std::string_view what, std::string_view where, int64_t least, int64_t most) {
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  const bool fits = value.is_number_unsigned() ? value.get<uint64_t>() <= kMost : value.is_number_integer();
  const int64_t number = fits ? value.get<int64_t>() : 0;
  require<CheckpointError>(fits && number >= least && number <= most, where, ": ", what,
                           " must be a whole number from ", least, " to ", most, ", found ", shown(value));
  return number;
}

int64_t integer_member(const Json& object, const char* key, std::string_view where, int64_t least, int64_t most) {
  return integer_from(member(object, key, where), cat('"', key, '"'), where, least, most);
}

Shape shape_member(const Json& object, const char* key, int64_t element_bytes, std::string_view where) {
  const Json& sizes = array_member(object, key, where);
  require<CheckpointError>(sizes.size() <= Shape::kMostDims, where, ": a tensor has at most ", Shape::kMostDims,
                           " dims, found ", sizes.size());
  Shape shape;
  int64_t bytes = element_bytes;
  for (const Json& size : sizes) {
    shape.append(integer_from(size, "a size", where));
    require<CheckpointError>(!__builtin_mul_overflow(bytes, std::max<int64_t>(shape.last(), 1), &bytes), where,
                             ": a tensor of ", sizes.dump(), " elements is larger than any memory");
  }
  return shape;
}

}  // namespace witan
