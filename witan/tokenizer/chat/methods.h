// Methods of Python's strings, dicts and lists that templates call.
#pragma once

#include <string>
#include <string_view>

#include "witan/tokenizer/chat/arguments.h"
#include "witan/tokenizer/chat/work.h"

namespace witan::jinja {

// Whether value.name is a method, supported or not, before it is an entry.
bool has_method(const Value& value, std::string_view name);
// value.name(arguments). Throws DataError for a method that is not supported, by name, and for arguments that it does
// not take.
Value call_method(const Value& value, const std::string& name, const Arguments& arguments, Work& work);

}  // namespace witan::jinja
