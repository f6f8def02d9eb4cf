// Jinja's tests, as far as they are supported.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "witan/tokenizer/chat/arguments.h"
#include "witan/tokenizer/chat/work.h"

namespace witan::jinja {

bool is_test(std::string_view name);
std::vector<std::string> test_names();  // for messages

// input is name(arguments). The name is a test's. Throws DataError for what the test does not take.
bool apply_test(std::string_view name, const Value& input, const Arguments& arguments, Work& work);

}  // namespace witan::jinja
