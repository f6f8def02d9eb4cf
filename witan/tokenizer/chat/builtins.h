// Everything that templates can apply to values: operators, attributes, methods, filters, tests and global functions,
// as Jinja and Python define them. Each function throws DataError for operands or arguments that it does not accept,
// and charges its cost to `work`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "witan/tokenizer/chat/arguments.h"
#include "witan/tokenizer/chat/value.h"

namespace witan::jinja {

// Attributes and items (access.cpp). value.name without a call, and value[key]; undefined if there is no such member.
// Throw DataError if the value itself is undefined, or if the attribute is a method, which must be called.
Value attribute_of(const Value& value, const std::string& name);
Value item_of(const Value& value, const Value& key);

// Operators (operators.cpp).
// `sign` is + or -.
Value apply_sign(const std::string& sign, const Value& value, Work& work);
// a sign b, where `sign` is +, -, *, /, //, % or **.
Value apply_arithmetic(const std::string& sign, const Value& a, const Value& b, Work& work);
// left sign right, where `sign` is ==, !=, <, <=, >, >=, in or not in.
bool apply_comparison(const std::string& sign, const Value& left, const Value& right, Work& work);
// value[from:to:step] of a string or a sequence; omitted bounds are nullopt.
Value slice_of(const Value& value, std::optional<int64_t> from, std::optional<int64_t> to, int64_t step, Work& work);

// Methods of strings, dicts and lists (methods.cpp): value.name(arguments).
// True for unsupported methods of Python, too: a method takes precedence over an entry of the same name.
bool has_method(const Value& value, std::string_view name);
// Throws DataError naming the method if it is not supported.
Value call_method(const Value& value, const std::string& name, const Arguments& arguments, Work& work);

// Filters (filters.cpp): input | name(arguments). `name` must be a filter's.
bool is_filter(std::string_view name);
std::vector<std::string> filter_names();  // for suggestions in messages
Value apply_filter(std::string_view name, const Value& input, const Arguments& arguments, Work& work);

// Tests (value_tests.cpp): input is name(arguments). `name` must be a test's.
bool is_test(std::string_view name);
std::vector<std::string> test_names();  // for suggestions in messages
bool apply_test(std::string_view name, const Value& input, const Arguments& arguments, Work& work);

// Global functions (globals.cpp).
// range(end), range(start, end) and range(start, end, step).
Value make_range(const Arguments& arguments, Work& work);
// The entries of dict(...) and namespace(...): those of a positional dict, then the keyword arguments.
Entries make_entries(const Arguments& arguments, Work& work);
// strftime_now(format); `now` as in ChatTemplateOptions.
std::string formatted_time(const std::string& format, std::optional<int64_t> now);

// Python's two ways to format text (formatting.cpp). Unsupported parts of
// https://docs.python.org/3/library/string.html#formatspec are refused by name.
// format % values
Value percent_format(const MarkedText& format, const Value& values, Work& work);
// format.format(arguments)
Value brace_format(const MarkedText& format, const Arguments& arguments, Work& work);

}  // namespace witan::jinja
