// Python's operators on values. Each takes what it costs from `work`, and throws DataError for operands that it does
// not take.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "witan/tokenizer/chat/value.h"
#include "witan/tokenizer/chat/work.h"

namespace witan::jinja {

// The sign is + or -.
Value apply_sign(const std::string& sign, const Value& value, Work& work);
// a sign b of +, -, *, /, //, % and **.
Value apply_arithmetic(const std::string& sign, const Value& a, const Value& b, Work& work);
// left sign right of ==, !=, <, <=, >, >=, in and not in.
bool apply_comparison(const std::string& sign, const Value& left, const Value& right, Work& work);
// value[from:to:step] of a string or a sequence; bounds are nothing where they are left out.
Value slice_of(const Value& value, std::optional<int64_t> from, std::optional<int64_t> to, int64_t step, Work& work);

}  // namespace witan::jinja
