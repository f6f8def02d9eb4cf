#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "witan/tokenizer/chat/builtins.h"

namespace witan::jinja {
namespace {

constexpr int64_t kMostFormatWidth = 1000;

struct FormatSpec {
  std::string fill = " ";
  char align = '\0', sign = '-', grouping = '\0', type = '\0';
  bool alternate = false;
  int64_t width = 0, precision = -1;
};

bool among_types(char c, std::string_view all) {
  return all.find(c) != all.npos;
}

// Consumes a number at the beginning.
std::optional<int64_t> take_digits(std::string_view& text) {
  int64_t number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || text[0] == '-' || read.ptr == text.data()) return std::nullopt;
  require<DataError>(read.ec == std::errc() && number <= kMostFormatWidth,
                     "the width or precision of a format exceeds ", kMostFormatWidth);
  text.remove_prefix(static_cast<size_t>(read.ptr - text.data()));
  return number;
}

FormatSpec parse_spec(std::string_view text) {
  FormatSpec spec;
  const std::string whole(text);
  if (const size_t first = byte_of(text, 1); first < text.size() && among_types(text[first], "<>=^")) {
    spec.fill = text.substr(0, first);
    spec.align = text[first];
    text.remove_prefix(first + 1);
  } else if (!text.empty() && among_types(text[0], "<>=^")) {
    spec.align = text[0];
    text.remove_prefix(1);
  }
  const auto take = [&](std::string_view all) {
    if (text.empty() || !among_types(text[0], all)) return '\0';
    const char c = text[0];
    text.remove_prefix(1);
    return c;
  };
  if (const char sign = take("+- ")) spec.sign = sign;
  spec.alternate = take("#") != '\0';
  if (take("0") && spec.align == '\0') {
    spec.fill = "0";
    spec.align = '=';
  }
  spec.width = take_digits(text).value_or(0);
  spec.grouping = take(",_");
  if (take(".")) {
    const auto precision = take_digits(text);
    require<DataError>(precision.has_value(), "the format ", clipped(whole), " has no precision after its point");
    spec.precision = *precision;
  }
  spec.type = take("sdboxXcnfFeEgG%");
  require<DataError>(text.empty() && spec.type != 'n' && spec.type != 'c', "the format ", clipped(whole),
                     " is not supported");
  return spec;
}

// Groups the digits before a point or exponent by three.
std::string grouped(const std::string& digits, char separator) {
  const size_t whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
  std::string out;
  for (size_t i = 0; i < whole; ++i) {
    if (i > 0 && (whole - i) % 3 == 0) out += separator;
    out += digits[i];
  }
  return out + digits.substr(whole);
}

std::string integer_digits(const Value& value, const FormatSpec& spec, std::string& prefix) {
  if (spec.type == 'd' || spec.type == '\0') {
    const std::string text = value.as<bool>() ? std::to_string(integer_of(value, "a number")) : str(value);
    return text.starts_with('-') ? text.substr(1) : text;
  }
  const int64_t number = integer_of(value, "a number in a base other than 10");
  const uint64_t size = number < 0 ? 0 - static_cast<uint64_t>(number) : static_cast<uint64_t>(number);
  if (spec.alternate) prefix = std::string{'0', spec.type};
  return spec.type == 'b'   ? fmt::format("{:b}", size)
         : spec.type == 'o' ? fmt::format("{:o}", size)
         : spec.type == 'x' ? fmt::format("{:x}", size)
                            : fmt::format("{:X}", size);
}

std::string real_digits(double size, const FormatSpec& spec) {
  if (spec.type == '\0') {
    require<DataError>(spec.precision < 0, "a precision without f, e or g is not supported for floats");
    return float_text(size);
  }
  const int precision = spec.precision < 0 ? 6 : static_cast<int>(spec.precision);
  const double shown = spec.type == '%' ? size * 100 : size;
  const char kind = spec.type == '%' ? 'f' : spec.type;
  require<DataError>(!spec.alternate, "# is not supported for floats");
  std::string text = kind == 'f'   ? fmt::format("{:.{}f}", shown, precision)
                     : kind == 'F' ? fmt::format("{:.{}F}", shown, precision)
                     : kind == 'e' ? fmt::format("{:.{}e}", shown, precision)
                     : kind == 'E' ? fmt::format("{:.{}E}", shown, precision)
                     : kind == 'g' ? fmt::format("{:.{}g}", shown, precision)
                                   : fmt::format("{:.{}G}", shown, precision);
  return spec.type == '%' ? text + "%" : text;
}

std::string padded(std::string_view prefix, std::string_view body, const FormatSpec& spec, char align) {
  const int64_t size = characters(prefix) + characters(body), gap = std::max<int64_t>(0, spec.width - size);
  const int64_t left = align == '<' || align == '=' ? 0 : align == '^' ? gap / 2 : gap;
  const auto fill = [&](int64_t count) {
    std::string out;
    for (int64_t i = 0; i < count; ++i) out += spec.fill;
    return out;
  };
  if (align == '=') return cat(prefix, fill(gap), body);
  return cat(fill(left), prefix, body, fill(gap - left));
}

MarkedText format_number(const Value& value, const FormatSpec& spec) {
  const bool real = value.as<double>() || among_types(spec.type, "fFeEgG%");
  require<DataError>(spec.type != 's' && (!real || !among_types(spec.type, "dboxX")), "the format ", spec.type,
                     " does not take ", type_name(value));
  require<DataError>(real || spec.precision < 0, "a precision is not allowed for an integer");
  const double number = number_of(value);
  std::string sign = std::signbit(number) && !std::isnan(number) ? "-"
                     : spec.sign == '-'                          ? ""
                                                                 : std::string(1, spec.sign),
              prefix;
  std::string digits = real ? real_digits(std::fabs(number), spec) : integer_digits(value, spec, prefix);
  if (spec.grouping) {
    require<DataError>(spec.fill != "0" && !among_types(spec.type, "boxX"),
                       "a format with groups is not supported with zeros or other bases");
    digits = grouped(digits, spec.grouping);
  }
  return {padded(sign + prefix, digits, spec, spec.align ? spec.align : '>')};
}

MarkedText format_text(const MarkedText& text, const FormatSpec& spec) {
  require<DataError>((spec.type == 's' || spec.type == '\0') && spec.align != '=' && spec.sign == '-' &&
                         !spec.alternate && !spec.grouping,
                     "a format for numbers does not take a string");
  const std::string_view all = text.bytes;
  const MarkedText shown = spec.precision < 0 ? text : text.part(all.substr(0, byte_of(all, spec.precision)));
  if (spec.width == 0) return shown;
  return shown.remade(padded("", shown.bytes, spec, spec.align ? spec.align : '<'));
}

MarkedText formatted(const Value& value, std::string_view spec) {
  if (spec.empty()) return marked_str(value);
  if (value.marked()) return format_text(*value.marked(), parse_spec(spec));
  require<DataError>(is_number(value), type_name(value), " takes no format");
  return format_number(value, parse_spec(spec));
}

MarkedText marked_repr(const Value& value) {
  MarkedText list = marked_str(Value::list({value}));  // as printed in a list, without the brackets
  return list.part(std::string_view(list.bytes).substr(1, list.bytes.size() - 2));
}

// Formats one % conversion. `text` starts after the % and any key, with flags, width, precision and type.
MarkedText percent_one(std::string_view& text, const Value& value) {
  FormatSpec spec;
  for (; !text.empty() && among_types(text[0], "#0- +"); text.remove_prefix(1)) {
    if (text[0] == '#') spec.alternate = true;
    if (text[0] == '0' && spec.align == '\0') spec.align = '=';
    if (text[0] == '-') spec.align = '<';
    if (text[0] == '+' || (text[0] == ' ' && spec.sign == '-')) spec.sign = text[0];
  }
  spec.width = take_digits(text).value_or(0);
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    spec.precision = take_digits(text).value_or(0);
  }
  require<DataError>(!text.empty(), "a format ends with %");
  const char type = text[0];
  text.remove_prefix(1);
  require<DataError>(among_types(type, "diusrfFeEgGxXo"), "the format %", type, " is not supported");
  if (type == 's' || type == 'r') {
    FormatSpec shown{.align = spec.align == '<' ? '<' : '>', .width = spec.width, .precision = spec.precision};
    return format_text(type == 's' ? marked_str(value) : marked_repr(value), shown);
  }
  require<DataError>(is_number(value), "%", type, " takes a number, not ", type_name(value));
  if (spec.align == '=') spec.fill = "0";
  spec.type = among_types(type, "iu") ? 'd' : type;
  if (!among_types(spec.type, "dxXo")) return format_number(value, spec);
  require<DataError>(spec.precision < 0, "%d with a precision is not supported");
  require<DataError>(spec.type == 'd' || !value.as<double>(), "%", type, " takes an integer, not a float");
  const double* real = value.as<double>();
  require<DataError>(!real || std::isfinite(*real), "%d takes a finite number");
  return format_number(real ? Value::integer(fmt::format("{:.0f}", std::trunc(*real))) : value, spec);
}

// A field in braces: its name with any .attribute and [item], then !r or !s, and :format.
class BraceFields {
 public:
  explicit BraceFields(const Arguments& arguments) : arguments_(arguments) {}

  MarkedText format(std::string_view field) {
    const size_t colon = std::min(field.find(':'), field.size());
    const std::string_view spec = field.substr(std::min(colon + 1, field.size()));
    require<DataError>(spec.find('{') == spec.npos, "a format within a format is not supported");
    std::string_view name = field.substr(0, colon);
    char conversion = '\0';
    if (const size_t mark = name.find('!'); mark != name.npos) {
      require<DataError>(name.size() == mark + 2 && among_types(name[mark + 1], "rs"), "the conversion in {",
                         clipped(field), "} is not supported");
      conversion = name[mark + 1];
      name = name.substr(0, mark);
    }
    const Value value = find(name);
    if (conversion == 'r') return formatted(Value::text(marked_repr(value)), spec);
    return formatted(conversion == 's' ? Value::text(marked_str(value)) : value, spec);
  }

 private:
  Value find(std::string_view name) {
    const size_t first = std::min(name.find_first_of(".["), name.size());
    const std::string_view head = name.substr(0, first);
    const bool number = head.find_first_not_of("0123456789") == head.npos;
    Value value;
    if (number) {
      require<DataError>(counted_ != !head.empty() || !began_, "{} and {0} cannot be mixed");
      began_ = true;
      counted_ = head.empty();
      const int64_t place = head.empty() ? next_++ : integer_of(Value::integer(head), "a place");
      require<DataError>(place < static_cast<int64_t>(arguments_.values.size()), "format has no argument ", place);
      value = arguments_.values[static_cast<size_t>(place)];
    } else {
      const Value* named = arguments_.find(head);
      require<DataError>(named != nullptr, "format has no argument ", clipped(head));
      value = *named;
    }
    return follow(std::move(value), name.substr(first));
  }

  static Value follow(Value value, std::string_view path) {
    while (!path.empty()) {
      const bool item = path[0] == '[';
      const size_t end = item ? path.find(']') : std::min(path.find_first_of(".[", 1), path.size());
      require<DataError>(end != path.npos && end > 1, "a field of the format has no name where one is expected");
      const std::string_view key = path.substr(1, end - 1);
      const bool number = item && key.find_first_not_of("0123456789") == key.npos;
      value = item ? item_of(value, number ? Value::integer(key) : Value::text(std::string(key)))
                   : attribute_of(value, std::string(key));
      require<DataError>(!value.is_undefined(), "format: there is no ", clipped(key));
      path.remove_prefix(item ? end + 1 : end);
    }
    return value;
  }

  const Arguments& arguments_;
  int64_t next_ = 0;
  bool counted_ = false, began_ = false;  // counted_: fields are {} rather than {0}
};

}  // namespace

Value percent_format(const MarkedText& format, const Value& values, Work& work) {
  require<DataError>(!format.markup, "formatting markup (safe, escape) is not supported");
  const Sequence* many = values.sequence();
  const bool tuple = many && many->tuple;
  size_t taken = 0;
  bool keyed = false;
  const auto next = [&]() -> Value {
    require<DataError>(tuple ? taken < many->items->size() : taken == 0, "there are fewer values than % in the format");
    return tuple ? (*many->items)[taken++] : (++taken, values);
  };
  MarkedText out;
  std::string_view rest = format.bytes;
  for (size_t at = 0; (at = rest.find('%')) != rest.npos;) {
    out.append(format.part(rest.substr(0, at)));
    rest.remove_prefix(at + 1);
    if (rest.starts_with('%')) {
      out.append("%");
      rest.remove_prefix(1);
      continue;
    }
    Value value;
    if (rest.starts_with('(')) {
      const size_t end = rest.find(')');
      require<DataError>(end != rest.npos && values.entries(), "%(name) takes a dict");
      const Value* found = find(*values.entries(), rest.substr(1, end - 1));
      require<DataError>(found != nullptr, "the values have no key ", clipped(rest.substr(1, end - 1)));
      value = *found;
      keyed = true;
      rest.remove_prefix(end + 1);
    } else {
      value = next();
    }
    work.take(1 + weight_of(value) + kMostFormatWidth / 8);
    out.append(percent_one(rest, value));
  }
  out.append(format.part(rest));
  require<DataError>(tuple ? taken == many->items->size() : taken > 0 || keyed || values.entries() || values.sequence(),
                     "there are more values than % in the format");
  return Value::text(std::move(out));
}

Value brace_format(const MarkedText& format, const Arguments& arguments, Work& work) {
  require<DataError>(!format.markup, "formatting markup (safe, escape) is not supported");
  MarkedText out;
  BraceFields fields(arguments);
  std::string_view rest = format.bytes;
  for (size_t at = 0; (at = rest.find_first_of("{}")) != rest.npos;) {
    out.append(format.part(rest.substr(0, at)));
    const char brace = rest[at];
    rest.remove_prefix(at + 1);
    if (rest.starts_with(brace)) {
      out.append(std::string_view(&brace, 1));
      rest.remove_prefix(1);
      continue;
    }
    const size_t end = rest.find('}');
    require<DataError>(brace == '{' && end != rest.npos, "a brace in the format has no counterpart");
    work.take(1 + arguments.weight() + kMostFormatWidth / 8);
    out.append(fields.format(rest.substr(0, end)));
    rest.remove_prefix(end + 1);
  }
  out.append(format.part(rest));
  return Value::text(std::move(out));
}

}  // namespace witan::jinja
