// Attributes and items of values.
#pragma once

#include <string>

#include "witan/tokenizer/chat/value.h"

namespace witan::jinja {

// value.name where it is not a call, and value[key]: undefined where there is none. Throws DataError for attributes of
// what is undefined, and for a method that is not called.
Value attribute_of(const Value& value, const std::string& name);
Value item_of(const Value& value, const Value& key);

}  // namespace witan::jinja
