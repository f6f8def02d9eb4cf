#include <algorithm>
#include <functional>
#include <map>

#include "witan/tokenizer/chat/builtins.h"
#include "witan/tokenizer/chat/strings.h"
#include "witan/tokenizer/chat/syntax.h"

namespace witan::jinja {
namespace {

using Test = std::function<bool(const Value& input, const Arguments& arguments, Work& work)>;

const Value& other(const Arguments& arguments) {
  require<DataError>(arguments.values.size() == 1, "the test takes one argument");
  return arguments.values[0];
}

bool same(const Value& a, const Value& b) {
  return a.variant().index() == b.variant().index() && equal(a, b);
}

bool contains(const Value& all, const Value& one) {
  if (const std::string* text = all.string()) {
    require<DataError>(one.string() != nullptr, type_name(one), " cannot be in a string");
    return text->find(*one.string()) != text->npos;
  }
  if (const Entries* entries = all.entries()) return find(*entries, one) != nullptr;
  if (all.is_undefined()) return false;
  require<DataError>(all.sequence() != nullptr, "nothing can be in ", type_name(all));
  return std::ranges::any_of(*all.sequence()->items, [&](const Value& item) { return equal(item, one); });
}

const std::map<std::string_view, Test>& tests() {
  using A = const Arguments&;
  using V = const Value&;
  const auto is_true = [](V v, bool wanted) { return v.as<bool>() && *v.as<bool>() == wanted; };
  const Test eq = [](V v, A a, Work&) { return equal(v, other(a)); };
  const Test ne = [](V v, A a, Work&) { return !equal(v, other(a)); };
  const Test lt = [](V v, A a, Work&) { return less(v, other(a)); };
  const Test gt = [](V v, A a, Work&) { return less(other(a), v); };
  const Test le = [](V v, A a, Work&) { return !less(other(a), v); };
  const Test ge = [](V v, A a, Work&) { return !less(v, other(a)); };
  const auto rest = [](V v, int64_t by) {
    require<DataError>(by != 0, "division by zero");
    return by == -1 ? 0 : integer_of(v, "what is tested") % by;
  };
  static const std::map<std::string_view, Test> all = {
      {"defined", [](V v, A, Work&) { return !v.is_undefined(); }},
      {"undefined", [](V v, A, Work&) { return v.is_undefined(); }},
      {"none", [](V v, A, Work&) { return v.is_none(); }},
      {"string", [](V v, A, Work&) { return v.string() != nullptr; }},
      {"mapping", [](V v, A, Work&) { return v.entries() != nullptr; }},
      {"escaped", [](V v, A, Work&) { return v.marked() && v.marked()->markup; }},
      {"iterable", [](V v, A, Work&) { return v.string() || v.sequence() || v.entries() || v.is_undefined(); }},
      {"sequence", [](V v, A, Work&) { return v.string() || v.sequence() || v.entries() || v.is_undefined(); }},
      {"number", [](V v, A, Work&) { return is_number(v); }},
      {"integer", [](V v, A, Work&) { return is_integer(v); }},
      {"float", [](V v, A, Work&) { return v.as<double>() != nullptr; }},
      {"boolean", [](V v, A, Work&) { return v.as<bool>() != nullptr; }},
      {"true", [is_true](V v, A, Work&) { return is_true(v, true); }},
      {"false", [is_true](V v, A, Work&) { return is_true(v, false); }},
      {"callable", [](V v, A, Work&) { return v.as<const Macro*>() || v.as<Global>(); }},
      {"sameas", [](V v, A a, Work&) { return same(v, other(a)); }},
      {"eq", eq},
      {"equalto", eq},
      {"==", eq},
      {"ne", ne},
      {"!=", ne},
      {"lt", lt},
      {"lessthan", lt},
      {"<", lt},
      {"gt", gt},
      {"greaterthan", gt},
      {">", gt},
      {"le", le},
      {"<=", le},
      {"ge", ge},
      {">=", ge},
      {"in", [](V v, A a, Work&) { return contains(other(a), v); }},
      {"odd", [rest](V v, A, Work&) { return rest(v, 2) != 0; }},
      {"even", [rest](V v, A, Work&) { return rest(v, 2) == 0; }},
      {"divisibleby", [rest](V v, A a, Work&) { return rest(v, integer_of(other(a), "the divisor")) == 0; }},
      {"lower", [](V v, A, Work&) { return lower(str(v)) == str(v); }},
      {"upper", [](V v, A, Work&) { return upper(str(v)) == str(v); }},
  };
  return all;
}

}  // namespace

bool is_test(std::string_view name) {
  return tests().contains(name);
}

std::vector<std::string> test_names() {
  std::vector<std::string> names;
  for (const auto& [name, test] : tests()) names.emplace_back(name);
  return names;
}

bool apply_test(std::string_view name, const Value& input, const Arguments& arguments, Work& work) {
  // Tests without arguments only look at a value's kind.
  work.take(arguments.values.empty() ? 1 : 1 + weight_of(input) + arguments.weight());
  return tests().find(name)->second(input, arguments, work);
}

}  // namespace witan::jinja
