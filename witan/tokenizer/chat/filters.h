// Jinja's filters, as far as they are supported.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "witan/tokenizer/chat/arguments.h"
#include "witan/tokenizer/chat/work.h"

namespace witan::jinja {

bool is_filter(std::string_view name);
std::vector<std::string> filter_names();  // for messages

// input | name(arguments). The name is a filter's. Throws DataError for what the filter does not take.
Value apply_filter(std::string_view name, const Value& input, const Arguments& arguments, Work& work);

}  // namespace witan::jinja
