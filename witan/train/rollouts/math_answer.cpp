#include "witan/train/rollouts/math_answer.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

namespace witan {
namespace {

constexpr size_t kLongestAnswer = 1000;  // bytes; longer ones are compared as text
constexpr int kDeepest = 50;             // nested brackets of an expression
constexpr double kPi = 3.14159265358979323846;

bool is_number_char(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) != 0 || c == '.';
}
bool is_letter(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0;
}

std::string_view without_space(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  return begin == std::string_view::npos ? "" : text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

// The place after the bracket that closes the one at `open`; npos: none does.
size_t after_group(std::string_view text, size_t open) {
  int depth = 0;
  for (size_t i = open; i < text.size(); ++i) {
    depth += text[i] == '{' ? 1 : text[i] == '}' ? -1 : 0;
    if (depth == 0) return i + 1;
  }
  return std::string_view::npos;
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

// Removes \name{...}, with an exponent after it: the text of a unit.
void remove_groups(std::string& text, std::string_view name) {
  for (size_t at = 0; (at = text.find(name, at)) != std::string::npos;) {
    size_t end = after_group(text, at + name.size() - 1);
    if (end == std::string::npos) return;
    if (end + 1 < text.size() && text[end] == '^' && at > 0) end += 2;
    text.erase(at, end - at);
  }
}

// Removes "cm", "apples" or "square meters" after a number, but no lone letter, which may be a variable.
void remove_unit(std::string& text) {
  size_t begin = text.size();
  while (begin > 0 && (is_letter(text[begin - 1]) || text[begin - 1] == ' ')) --begin;
  const auto letters = std::count_if(text.begin() + static_cast<std::ptrdiff_t>(begin), text.end(), is_letter);
  if (begin > 0 && letters > 1 && (is_number_char(text[begin - 1]) || text[begin - 1] == '}')) text.resize(begin);
}

// Without LaTeX that changes no value, units, and the commas between thousands.
std::string plain(std::string text) {
  for (const char* removed : {"\\left", "\\right", "\\!", "\\,", "\\;", "\\:", "\\quad", "\\displaystyle", "\\$", "$",
                              "^\\circ", "^{\\circ}", "\\(", "\\)", "\\[", "\\]", "°"})
    replace_all(text, removed, "");
  replace_all(text, "\\ ", " ");
  replace_all(text, "~", " ");
  replace_all(text, "\\dfrac", "\\frac");
  replace_all(text, "\\tfrac", "\\frac");
  replace_all(text, "\\%", "%");
  replace_all(text, "−", "-");
  const std::string before = text;
  for (const char* name : {"\\text{", "\\mathrm{", "\\mbox{"}) remove_groups(text, name);
  if (without_space(text).empty())  // it was all of the answer
    for (const char* name : {"\\text{", "\\mathrm{", "\\mbox{"}) {
      text = text.empty() || without_space(text).empty() ? before : text;
      if (const size_t at = text.find(name); at != std::string::npos)
        text = text.substr(at + std::string_view(name).size(), text.rfind('}') - at - std::string_view(name).size());
    }
  text = without_space(text);
  while (!text.empty() && (text.back() == '.' || text.back() == ',' || text.back() == ';')) text.pop_back();
  remove_unit(text);
  if (const size_t equals = text.rfind('='); equals != std::string::npos && equals > 0) {
    const std::string_view name = without_space(std::string_view(text).substr(0, equals));
    if (name.size() == 1 && is_letter(name[0])) text = text.substr(equals + 1);
  }
  return std::string(without_space(text));
}

// The value of an expression; every member returns nothing for one that it cannot read.
class Expression {
 public:
  explicit Expression(std::string_view text) : text_(text) {}

  std::optional<double> value() {
    const auto value = sum(0);
    skip_space();
    if (!value || at_ < text_.size() || !std::isfinite(*value)) return {};
    return value;
  }

 private:
  void skip_space() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  bool take(std::string_view token) {
    skip_space();
    if (!text_.substr(at_).starts_with(token)) return false;
    if (is_letter(token.back()) && at_ + token.size() < text_.size() && is_letter(text_[at_ + token.size()]))
      return false;
    at_ += token.size();
    return true;
  }
  std::optional<double> sum(int depth) {
    if (depth > kDeepest) return {};
    auto left = product(depth);
    while (left) {
      const bool minus = take("-");
      if (!minus && !take("+")) break;
      const auto right = product(depth);
      if (!right) return {};
      left = minus ? *left - *right : *left + *right;
    }
    return left;
  }
  std::optional<double> product(int depth) {
    auto left = signed_power(depth);
    while (left) {
      if (take("*") || take("\\times") || take("\\cdot")) {
        const auto right = signed_power(depth);
        if (!right) return {};
        left = *left * *right;
      } else if (take("/") || take("\\div")) {
        const auto right = signed_power(depth);
        if (!right) return {};
        left = *left / *right;
      } else if (begins_factor()) {  // 2\pi, 3\sqrt{2}, 1\frac{1}{2}
        const bool mixed = after_integer_ && text_.substr(at_).starts_with("\\frac");
        const auto right = power(depth);
        if (!right) return {};
        left = mixed ? *left + std::copysign(*right, *left) : *left * *right;
      } else {
        break;
      }
    }
    return left;
  }
  bool begins_factor() {
    skip_space();
    const std::string_view rest = text_.substr(at_);
    return rest.starts_with("\\frac") || rest.starts_with("\\sqrt") || rest.starts_with("\\pi") ||
           rest.starts_with("(");
  }
  std::optional<double> signed_power(int depth) {
    if (depth > kDeepest) return {};
    if (take("-")) {
      const auto value = signed_power(depth + 1);
      return value ? std::optional(-*value) : std::nullopt;
    }
    take("+");
    return power(depth);
  }
  std::optional<double> power(int depth) {
    const auto base = atom(depth);
    if (!base || !take("^")) return base;
    after_integer_ = false;
    const auto exponent = argument(depth + 1);
    return exponent ? std::optional(std::pow(*base, *exponent)) : std::nullopt;
  }
  // LaTeX's argument: a group, or one digit or sign with what follows.
  std::optional<double> argument(int depth) {
    skip_space();
    if (at_ < text_.size() && text_[at_] == '{') return bracketed("{", "}", depth);
    if (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0) return text_[at_++] - '0';
    return take("-") ? number_after(-1) : atom(depth);
  }
  std::optional<double> number_after(double sign) {
    const auto value = number();
    return value ? std::optional(sign * *value) : std::nullopt;
  }
  std::optional<double> bracketed(std::string_view open, std::string_view close, int depth) {
    if (!take(open)) return {};
    const auto value = sum(depth + 1);
    return value && take(close) ? value : std::nullopt;
  }
  std::optional<double> number() {
    skip_space();
    size_t end = at_;
    while (end < text_.size() && is_number_char(text_[end])) ++end;
    after_integer_ = text_.substr(at_, end - at_).find('.') == std::string_view::npos;
    if (end + 1 < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      size_t exponent = end + 1 + (text_[end + 1] == '-' || text_[end + 1] == '+');
      const size_t digits = exponent;
      while (exponent < text_.size() && std::isdigit(static_cast<unsigned char>(text_[exponent])) != 0) ++exponent;
      if (exponent > digits) end = exponent;
    }
    std::string digits(text_.substr(at_, end - at_));
    if (digits.starts_with(".")) digits.insert(0, "0");
    double value = 0;
    const auto [rest, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (digits.empty() || error != std::errc() || rest != digits.data() + digits.size()) return {};
    at_ = end;
    return value;
  }
  std::optional<double> atom(int depth) {
    skip_space();
    if (at_ == text_.size() || depth > kDeepest) return {};
    if (is_number_char(text_[at_])) return number();
    after_integer_ = false;
    if (text_[at_] == '(') return bracketed("(", ")", depth);
    if (text_[at_] == '{') return bracketed("{", "}", depth);
    if (take("\\pi") || take("π")) return kPi;
    if (take("\\frac")) {
      const auto above = argument(depth + 1), below = above ? argument(depth + 1) : std::nullopt;
      return below ? std::optional(*above / *below) : std::nullopt;
    }
    if (take("\\sqrt")) {
      std::optional<double> degree = 2;
      if (at_ < text_.size() && text_[at_] == '[') degree = bracketed("[", "]", depth);
      const auto of = degree ? argument(depth + 1) : std::nullopt;
      return of ? std::optional(std::pow(*of, 1 / *degree)) : std::nullopt;
    }
    return {};
  }

  std::string_view text_;
  size_t at_ = 0;
  bool after_integer_ = false;
};

// Without the commas of "1,000" and "12,345.6".
std::string without_thousands(const std::string& text) {
  std::string out;
  const auto digit = [&](size_t i) {
    return i < text.size() && std::isdigit(static_cast<unsigned char>(text[i])) != 0;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const bool comma =
        text[i] == ',' && i > 0 && digit(i - 1) && digit(i + 1) && digit(i + 2) && digit(i + 3) && !digit(i + 4);
    if (!comma) out += text[i];
  }
  return out;
}

struct Value {
  double number;
  bool percent;
};

std::optional<Value> value_of(std::string text) {
  if (text.size() > kLongestAnswer) return {};
  const bool percent = text.ends_with("%");
  if (percent) text.pop_back();
  const auto value = Expression(without_thousands(text)).value();
  return value ? std::optional(Value{*value, percent}) : std::nullopt;
}

bool close(double a, double b) {
  return std::abs(a - b) <= 1e-9 * std::max({std::abs(a), std::abs(b), 1e-300});
}

bool equal_values(const Value& a, const Value& b) {
  if (close(a.number, b.number)) return true;
  return a.percent != b.percent && close(a.percent ? a.number / 100 : a.number, b.percent ? b.number / 100 : b.number);
}

// The members of a list at its outermost level, and its brackets, if it has some.
struct List {
  std::string brackets;
  std::vector<std::string> members;
};

std::optional<List> list_of(std::string text) {
  List list;
  constexpr std::string_view kOpen = "([{", kClose = ")]}";
  replace_all(text, "\\{", "{");
  replace_all(text, "\\}", "}");
  if (text.size() >= 2 && kOpen.find(text.front()) != std::string_view::npos &&
      kClose.find(text.back()) != std::string_view::npos) {
    list.brackets = {text.front(), text.back()};
    text = text.substr(1, text.size() - 2);
  }
  int depth = 0;
  list.members.emplace_back();
  for (const char c : text) {
    depth += kOpen.find(c) != std::string_view::npos ? 1 : kClose.find(c) != std::string_view::npos ? -1 : 0;
    if (c == ',' && depth == 0)
      list.members.emplace_back();
    else
      list.members.back() += c;
  }
  if (list.members.size() < 2) return {};
  return list;
}

bool equal_plain(const std::string& given, const std::string& expected, int depth) {
  const auto a = value_of(given), b = value_of(expected);
  if (a || b) return a && b && equal_values(*a, *b);
  if (const auto x = list_of(given), y = list_of(expected); x && y && depth < kDeepest) {
    if (x->brackets != y->brackets || x->members.size() != y->members.size()) return false;
    for (size_t i = 0; i < x->members.size(); ++i)
      if (!equal_plain(std::string(without_space(x->members[i])), std::string(without_space(y->members[i])), depth + 1))
        return false;
    return true;
  }
  std::string left = given, right = expected;
  std::erase(left, ' ');
  std::erase(right, ' ');
  return left == right;
}

}  // namespace

std::string final_answer(std::string_view text) {
  for (const std::string_view box : {"\\boxed{", "\\fbox{"})
    if (const size_t at = text.rfind(box); at != std::string_view::npos) {
      const size_t open = at + box.size() - 1, end = after_group(text, open);
      if (end != std::string_view::npos) return std::string(without_space(text.substr(open + 1, end - open - 2)));
    }
  if (const size_t at = text.rfind("####"); at != std::string_view::npos)
    return std::string(without_space(text.substr(at + 4)));
  constexpr std::string_view kIs = "answer is";
  if (const size_t at = text.rfind(kIs); at != std::string_view::npos) {
    std::string_view rest = text.substr(at + kIs.size());
    if (rest.starts_with(":")) rest.remove_prefix(1);
    size_t end = rest.find('\n');
    if (const size_t stop = rest.find(". "); stop != std::string_view::npos) end = std::min(end, stop);
    return std::string(without_space(rest.substr(0, end)));
  }
  return std::string(without_space(text));
}

bool same_answer(std::string_view given, std::string_view expected) {
  const std::string left = plain(final_answer(given)), right = plain(final_answer(expected));
  return !right.empty() && equal_plain(left, right, 0);
}

}  // namespace witan
