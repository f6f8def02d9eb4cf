// Jinja's filters and tests, as far as they are supported.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "witan/tokenizer/chat/arguments.h"
#include "witan/tokenizer/chat/work.h"

namespace witan::jinja {

bool is_filter(std::string_view name);
bool is_test(std::string_view name);
// For messages.
std::vector<std::string> filter_names();
std::vector<std::string> test_names();

// input | name(arguments). The name is one of theirs. Throw DataError for what the filter does not take.
Value apply_filter(std::string_view name, const Value& input, const Arguments& arguments, Work& work);
// input is name(arguments).
bool apply_test(std::string_view name, const Value& input, const Arguments& arguments, Work& work);

// value.name where it is not a call, and value[key]: undefined where there is none. Throws DataError for attributes of
// what is undefined, and for a method that is not called.
Value attribute_of(const Value& value, const std::string& name);
Value item_of(const Value& value, const Value& key);

}  // namespace witan::jinja
