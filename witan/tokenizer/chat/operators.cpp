#include <algorithm>
#include <cmath>

#include "witan/base/error.h"
#include "witan/tokenizer/chat/builtins.h"

namespace witan::jinja {
namespace {

Value of_integers(const std::string& sign, int64_t a, int64_t b, Work& work) {
  int64_t result = 0;
  bool overflow = false;
  if (sign == "+") {
    overflow = __builtin_add_overflow(a, b, &result);
  } else if (sign == "-") {
    overflow = __builtin_sub_overflow(a, b, &result);
  } else if (sign == "*") {
    overflow = __builtin_mul_overflow(a, b, &result);
  } else if (sign == "**") {
    if (b < 0) return Value::Variant(std::pow(static_cast<double>(a), static_cast<double>(b)));
    result = 1;
    work.take(static_cast<uint64_t>(b));
    for (int64_t i = 0; i < b && !overflow; ++i) overflow = __builtin_mul_overflow(result, a, &result);
  } else {
    require<DataError>(b != 0, "division by zero");
    if (b == -1) return of_integers(sign == "//" ? "-" : "*", 0, sign == "//" ? a : 0, work);
    const int64_t rest = a % b, below = rest != 0 && (rest < 0) != (b < 0) ? 1 : 0;  // Python rounds down
    result = sign == "//" ? a / b - below : rest + below * b;
  }
  require<DataError>(!overflow, "an integer is beyond 64 bits");
  return Value::integer(result);
}

Value of_reals(const std::string& sign, double x, double y) {
  if (sign == "+") return Value::Variant(x + y);
  if (sign == "-") return Value::Variant(x - y);
  if (sign == "*") return Value::Variant(x * y);
  if (sign == "**") return Value::Variant(std::pow(x, y));
  require<DataError>(y != 0, "division by zero");
  if (sign == "/") return Value::Variant(x / y);
  const double whole = std::floor(x / y);
  return Value::Variant(sign == "//" ? whole : x - whole * y);
}

Value repeated(const Value& value, int64_t times, Work& work) {
  const auto count = static_cast<uint64_t>(std::max<int64_t>(times, 0));
  uint64_t all = 0;
  if (__builtin_mul_overflow(count, static_cast<uint64_t>(weight_of(value)), &all)) all = UINT64_MAX;
  work.take(all);
  MarkedText text;
  Items items;
  if (value.string()) text.markup = value.marked()->markup;
  for (uint64_t i = 0; i < count; ++i) {
    if (value.string())
      text.append(*value.marked());
    else
      items.insert(items.end(), value.sequence()->items->begin(), value.sequence()->items->end());
  }
  return value.string() ? Value::text(std::move(text)) : Value::list(std::move(items), value.sequence()->tuple);
}

Value joined_texts(const MarkedText& a, const MarkedText& b) {
  const bool markup = a.markup || b.markup;
  MarkedText text = markup ? escaped(a) : a;
  text.append(markup ? escaped(b) : b);
  return Value::text(std::move(text));
}

// A slice in Python's sense: where it begins, its step and how many items it has.
struct SliceRange {
  int64_t begin = 0, step = 1, count = 0;
};

SliceRange slice_range(int64_t size, std::optional<int64_t> from, std::optional<int64_t> to, int64_t step) {
  require<DataError>(step != 0, "a slice's step is 0");
  const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
  const auto place = [&](std::optional<int64_t> given, int64_t otherwise) {
    return given ? std::clamp(*given < 0 ? *given + size : *given, low, high) : otherwise;
  };
  const int64_t begin = place(from, step > 0 ? low : high), end = place(to, step > 0 ? high : low);
  const int64_t span = step > 0 ? end - begin : begin - end;
  const int64_t stride = step == INT64_MIN ? INT64_MAX : std::abs(step);
  return {begin, step, span <= 0 ? 0 : (span - 1) / stride + 1};
}

}  // namespace

Value apply_sign(const std::string& sign, const Value& value, Work& work) {
  require<DataError>(is_number(value), sign, " takes a number, not ", type_name(value));
  if (value.as<double>()) return Value::Variant(sign == "-" ? -number_of(value) : number_of(value));
  if (is_integer(value)) {
    const std::string digits = str(value);
    return sign == "+" ? value : Value::integer(digits.starts_with('-') ? digits.substr(1) : "-" + digits);
  }
  return of_integers(sign, 0, integer_of(value, "a number"), work);
}

Value apply_arithmetic(const std::string& sign, const Value& a, const Value& b, Work& work) {
  work.take(weight_of(a) + weight_of(b));
  if (sign == "%" && a.string()) return percent_format(*a.marked(), b, work);
  if (is_number(a) && is_number(b)) {
    require<DataError>((!a.as<BigInteger>() && !b.as<BigInteger>()) || a.as<double>() || b.as<double>(),
                       "arithmetic with integers beyond 64 bits is not supported");
    if (!a.as<double>() && !b.as<double>() && sign != "/")
      return of_integers(sign, integer_of(a, "a number"), integer_of(b, "a number"), work);
    return of_reals(sign, number_of(a), number_of(b));
  }
  if (sign == "+" && a.string() && b.string()) return joined_texts(*a.marked(), *b.marked());
  if (sign == "+" && a.sequence() && b.sequence() && a.sequence()->tuple == b.sequence()->tuple) {
    Items items = *a.sequence()->items;
    items.insert(items.end(), b.sequence()->items->begin(), b.sequence()->items->end());
    return Value::list(std::move(items), a.sequence()->tuple);
  }
  if (sign == "*" && (a.string() || a.sequence()) && is_number(b)) return repeated(a, integer_of(b, "a factor"), work);
  if (sign == "*" && (b.string() || b.sequence()) && is_number(a)) return repeated(b, integer_of(a, "a factor"), work);
  const auto named = [](const Value& value) {
    return value.is_undefined() ? cat(value.as<Undefined>()->name, ", which is undefined,") : type_name(value);
  };
  throw DataError(cat(sign, " does not take ", named(a), " and ", named(b)));
}

bool apply_comparison(const std::string& sign, const Value& left, const Value& right, Work& work) {
  work.take(std::min(weight_of(left), weight_of(right)));
  if (sign == "==" || sign == "!=") return equal(left, right) == (sign == "==");
  if (sign == "in" || sign == "not in") return apply_test("in", left, {{right}, {}}, work) == (sign == "in");
  if (sign == "<" || sign == ">=") return less(left, right) == (sign == "<");
  return less(right, left) == (sign == ">");
}

Value slice_of(const Value& value, std::optional<int64_t> from, std::optional<int64_t> to, int64_t step, Work& work) {
  const SliceRange range = slice_range(length_of(value), from, to, step);
  Items items;
  if (value.string() && range.step == 1) {
    const std::string_view text = *value.string();
    const std::string_view rest = text.substr(byte_of(text, range.begin));
    return Value::text(value.marked()->part(rest.substr(0, byte_of(rest, range.count))));
  }
  work.take(static_cast<uint64_t>(length_of(value)) * 4);
  const Items all = items_of(value);
  for (int64_t i = 0; i < range.count; ++i) items.push_back(all[static_cast<size_t>(range.begin + i * range.step)]);
  if (value.sequence()) return Value::list(std::move(items), value.sequence()->tuple);
  MarkedText text{{}, {}, value.marked()->markup};
  for (const Value& item : items) text.append(*item.marked());
  return Value::text(std::move(text));
}

}  // namespace witan::jinja
