#include "witan/tokenizer/chat/rendering.h"

#include <cmath>
#include <ctime>

#include "witan/tokenizer/chat/filters.h"
#include "witan/tokenizer/chat/methods.h"

namespace witan::jinja {
namespace {

constexpr int kMostCalls = 1000;  // of evaluate() and execute() within one another
constexpr size_t kMostOutput = 256 << 20;
// What a step of the interpreter costs, and a turn of a loop, which makes a scope.
constexpr uint64_t kStep = 8, kTurn = 32;

// Python's slices: where they begin, and how many items they have.
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

class Rendering::Depth {
 public:
  explicit Depth(Rendering& rendering) : rendering_(rendering) {
    require<DataError>(rendering_.depth_ < kMostCalls, "macros and expressions are nested deeper than ", kMostCalls);
    ++rendering_.depth_;
  }
  ~Depth() { --rendering_.depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;

 private:
  Rendering& rendering_;
};

Rendering::Rendering(const std::string& name, uint64_t most_work, std::optional<int64_t> now)
    : name_(name), work_(most_work), now_(now) {
  define("range", Value::Variant(Global::range));
  define("raise_exception", Value::Variant(Global::raise_exception));
  define("strftime_now", Value::Variant(Global::strftime_now));
  define("namespace", Value::Variant(Global::make_namespace));
  define("dict", Value::Variant(Global::make_dict));
}

void Rendering::define(const std::string& name, Value value) {
  root_.names.insert_or_assign(name, std::move(value));
}

RenderedChat Rendering::run(const Block& block) {
  try {
    execute(block);
  } catch (const ConversationError&) {
    throw;
  } catch (const DataError& error) {
    throw DataError(cat(name_, ":", line_, ": ", error.what()));
  }
  return std::move(rendered_);
}

// ---- statements

Rendering::Leaving Rendering::execute(const Block& block) {
  const Depth depth(*this);
  for (const Statement& statement : block)
    if (const Leaving leaving = execute(statement); leaving != Leaving::no) return leaving;
  return Leaving::no;
}

Rendering::Leaving Rendering::execute(const Statement& statement) {
  using Kind = Statement::Kind;
  work_.take(kStep);
  line_ = statement.line;
  switch (statement.kind) {
    case Kind::text:
      write(statement.text);
      break;
    case Kind::output: {
      const Value value = evaluate(*statement.expression);
      work_.take(weight_of(value));
      write(str(value));
      break;
    }
    case Kind::branch:
      return branch(statement);
    case Kind::loop:
      return loop(statement);
    case Kind::set:
    case Kind::set_block:
      set(statement);
      break;
    case Kind::macro:
      macros_.push_back({&statement});
      scope_->names.insert_or_assign(statement.names[0], Value::Variant(static_cast<const Macro*>(&macros_.back())));
      break;
    case Kind::filter: {
      Scope own{scope_};
      write(str(filtered(statement, Value::text(captured(statement.bodies[0], own)))));
      break;
    }
    case Kind::generation:
      generation(statement);
      break;
    case Kind::stop:
      return Leaving::stop;
    case Kind::next:
      return Leaving::next;
  }
  return Leaving::no;
}

Rendering::Leaving Rendering::branch(const Statement& statement) {
  for (size_t i = 0; i < statement.conditions.size(); ++i)
    if (truth(evaluate(*statement.conditions[i]))) return execute(statement.bodies[i]);
  const bool has_else = statement.bodies.size() > statement.conditions.size();
  return has_else ? execute(statement.bodies.back()) : Leaving::no;
}

void Rendering::bind(const std::vector<std::string>& names, const Value& value) {
  if (names.size() == 1) {
    scope_->names.insert_or_assign(names[0], value);
    return;
  }
  const Items parts = items_of(value);
  require<DataError>(parts.size() == names.size(), names.size(), " names are set to ", parts.size(), " values");
  for (size_t i = 0; i < names.size(); ++i) scope_->names.insert_or_assign(names[i], parts[i]);
}

Items Rendering::items_of_loop(const Statement& statement) {
  const Value all = evaluate(*statement.expression);
  work_.take(weight_of(all));
  Items items = items_of(all);
  if (statement.conditions.empty()) return items;
  Items kept;
  Scope own{scope_};
  scope_ = &own;
  for (const Value& item : items) {
    bind(statement.names, item);
    if (truth(evaluate(*statement.conditions[0]))) kept.push_back(item);
  }
  scope_ = own.parent;
  return kept;
}

Rendering::Leaving Rendering::loop(const Statement& statement) {
  const auto items = std::make_shared<const Items>(items_of_loop(statement));
  if (items->empty()) {
    if (statement.bodies.size() < 2) return Leaving::no;
    Scope own{scope_};
    scope_ = &own;
    const Leaving leaving = execute(statement.bodies[1]);
    scope_ = own.parent;
    return leaving;
  }
  Loop& state = loops_.emplace_back(Loop{items});
  for (; state.index < items->size(); ++state.index) {
    work_.take(kTurn);
    Scope own{scope_};  // of each turn: nothing that is set lasts to the next one
    scope_ = &own;
    own.names.insert_or_assign("loop", Value::Variant(static_cast<const Loop*>(&state)));
    bind(statement.names, (*items)[state.index]);
    const Leaving leaving = execute(statement.bodies[0]);
    scope_ = own.parent;
    if (leaving == Leaving::stop) break;
  }
  return Leaving::no;
}

std::string Rendering::captured(const Block& block, Scope& scope) {
  std::string text;
  std::string* const out = out_;
  Scope* const before = scope_;
  out_ = &text;
  scope_ = &scope;
  execute(block);
  out_ = out;
  scope_ = before;
  return text;
}

Value Rendering::filtered(const Statement& statement, Value value) {
  for (const ExpressionPtr& filter : statement.filters)
    value = apply_filter(filter->text, value, arguments_of(*filter, 1), work_);
  return value;
}

void Rendering::set(const Statement& statement) {
  if (statement.kind == Statement::Kind::set_block) {
    Scope own{scope_};
    Value value = filtered(statement, Value::text(captured(statement.bodies[0], own)));
    scope_->names.insert_or_assign(statement.names[0], std::move(value));
    return;
  }
  Value value = evaluate(*statement.expression);
  if (statement.attribute.empty()) return bind(statement.names, value);
  const Value target = find_name(statement.names[0]);
  Namespace* const* space = target.as<Namespace*>();
  require<DataError>(space != nullptr, statement.names[0], " is ", type_name(target),
                     ": only attributes of a namespace can be set");
  (*space)->attributes.insert_or_assign(statement.attribute, std::move(value));
}

void Rendering::generation(const Statement& statement) {
  require<DataError>(out_ == &rendered_.text,
                     "{% generation %} within a macro or a block that is captured is not "
                     "supported");
  const size_t begin = out_->size();
  Scope own{scope_};
  scope_ = &own;
  execute(statement.bodies[0]);
  scope_ = own.parent;
  rendered_.generated.push_back({begin, out_->size()});
}

void Rendering::write(std::string_view text) {
  work_.take(1 + text.size() / 8);
  require<DataError>(out_->size() + text.size() <= kMostOutput, "the template writes more than ",
                     format_bytes(kMostOutput));
  *out_ += text;
}

// ---- expressions

Value Rendering::evaluate(const Expression& e) {
  using Kind = Expression::Kind;
  const Depth depth(*this);
  work_.take(kStep);
  line_ = e.line;
  switch (e.kind) {
    case Kind::constant:
      return e.value;
    case Kind::name:
      return find_name(e.text);
    case Kind::list: {
      Items items;
      for (const ExpressionPtr& child : e.children) items.push_back(evaluate(*child));
      return Value::list(std::move(items), e.text == "tuple");
    }
    case Kind::dict:
      return evaluate_dict(e);
    case Kind::attribute:
      return attribute_of(evaluate(*e.children[0]), e.text);
    case Kind::item: {
      const Value value = evaluate(*e.children[0]);
      if (value.string()) work_.take(weight_of(value));
      return item_of(value, evaluate(*e.children[1]));
    }
    case Kind::slice:
      return slice(e);
    case Kind::call:
      return call(e);
    case Kind::filter: {
      const Value input = evaluate(*e.children[0]);
      return apply_filter(e.text, input, arguments_of(e, 1), work_);
    }
    case Kind::test: {
      const Value input = evaluate(*e.children[0]);
      return Value::boolean(apply_test(e.text, input, arguments_of(e, 1), work_));
    }
    case Kind::conditional:
      if (truth(evaluate(*e.children[1]))) return evaluate(*e.children[0]);
      return e.children[2] ? evaluate(*e.children[2]) : Value::undefined("the other case of an if without else");
    case Kind::all:
    case Kind::any: {
      Value value;
      for (const ExpressionPtr& child : e.children)
        if (truth(value = evaluate(*child)) != (e.kind == Kind::all)) break;
      return value;
    }
    case Kind::negation:
      return Value::boolean(!truth(evaluate(*e.children[0])));
    case Kind::minus:
    case Kind::plus: {
      const Value value = evaluate(*e.children[0]);
      const std::string sign = e.kind == Kind::minus ? "-" : "+";
      require<DataError>(is_number(value), sign, " takes a number, not ", type_name(value));
      if (value.as<double>()) return Value::Variant(e.kind == Kind::minus ? -number_of(value) : number_of(value));
      return integers(sign, 0, integer_of(value, "a number"));
    }
    case Kind::arithmetic:
      return arithmetic(e);
    case Kind::compare:
      return Value::boolean(compare(e));
    case Kind::concat: {
      std::string text;
      for (const ExpressionPtr& child : e.children) {
        const Value value = evaluate(*child);
        work_.take(1 + text.size() / 8 + weight_of(value));
        text += str(value);
      }
      return Value::text(std::move(text));
    }
  }
  return {};
}

Value Rendering::find_name(const std::string& name) {
  for (const Scope* scope = scope_; scope; scope = scope->parent)
    if (const auto found = scope->names.find(name); found != scope->names.end()) return found->second;
  return Value::undefined(name);
}

Value Rendering::evaluate_dict(const Expression& e) {
  Entries entries;
  for (size_t i = 0; i + 1 < e.children.size(); i += 2) {
    const Value key = evaluate(*e.children[i]);
    Value value = evaluate(*e.children[i + 1]);
    require<DataError>(key.string() != nullptr, "a dict's keys must be strings, and one is ", type_name(key));
    const auto same = std::ranges::find(entries, *key.string(), [](const auto& entry) { return entry.first; });
    work_.take(1 + entries.size());
    if (same != entries.end())
      same->second = std::move(value);
    else
      entries.emplace_back(*key.string(), std::move(value));
  }
  return Value::dict(std::move(entries));
}

Value Rendering::slice(const Expression& e) {
  const Value value = evaluate(*e.children[0]);
  const auto bound = [&](size_t i) -> std::optional<int64_t> {
    if (!e.children[i]) return std::nullopt;
    const Value given = evaluate(*e.children[i]);
    if (given.is_none()) return std::nullopt;
    constexpr int64_t kMost = int64_t{1} << 40;
    return std::clamp(integer_of(given, "a slice's bound"), -kMost, kMost);
  };
  require<DataError>(value.string() || value.sequence(), type_name(value), " cannot be sliced");
  work_.take(weight_of(value));
  const auto from = bound(1), to = bound(2);
  const SliceRange range = slice_range(length_of(value), from, to, bound(3).value_or(1));
  Items items;
  if (value.string() && range.step == 1) {
    const std::string_view text = *value.string();
    const size_t begin = byte_of(text, range.begin);
    return Value::text(std::string(text.substr(begin, byte_of(text.substr(begin), range.count))));
  }
  const Items all = items_of(value);
  for (int64_t i = 0; i < range.count; ++i) items.push_back(all[static_cast<size_t>(range.begin + i * range.step)]);
  if (value.sequence()) return Value::list(std::move(items), value.sequence()->tuple);
  std::string text;
  for (const Value& item : items) text += *item.string();
  return Value::text(std::move(text));
}

Arguments Rendering::arguments_of(const Expression& e, size_t first) {
  Arguments arguments;
  for (size_t i = first; i < e.children.size(); ++i) arguments.values.push_back(evaluate(*e.children[i]));
  for (const auto& [name, value] : e.named) arguments.named.emplace_back(name, evaluate(*value));
  line_ = e.line;
  return arguments;
}

Value Rendering::call(const Expression& e) {
  const Expression& callee = *e.children[0];
  Value function;
  if (callee.kind == Expression::Kind::attribute) {
    const Value object = evaluate(*callee.children[0]);
    if (has_method(object, callee.text)) return call_method(object, callee.text, arguments_of(e, 1), work_);
    require<DataError>(!object.string() && !object.sequence(), type_name(object), " has no method ", callee.text);
    function = attribute_of(object, callee.text);
  } else {
    function = evaluate(callee);
  }
  const Arguments arguments = arguments_of(e, 1);
  if (const Global* global = function.as<Global>()) return call_global(*global, arguments);
  if (const Macro* const* macro = function.as<const Macro*>()) return call_macro(**macro, arguments);
  const std::string name = callee.text.empty() ? "the value" : callee.text;
  throw DataError(cat(name, " is ", type_name(function), ", and cannot be called"));
}

Value Rendering::call_global(Global global, const Arguments& arguments) {
  switch (global) {
    case Global::range:
      return make_range(arguments);
    case Global::raise_exception:
      throw ConversationError(
          cat(name_, ":", line_, ": ", arguments.values.empty() ? std::string() : str(arguments.values[0])));
    case Global::strftime_now:
      arguments.check("strftime_now", {"format"});
      require<DataError>(arguments.values.size() == 1 && arguments.values[0].string(), "strftime_now takes a format");
      return Value::text(date(*arguments.values[0].string()));
    case Global::make_namespace:
    case Global::make_dict:
      break;
  }
  Entries entries;
  require<DataError>(arguments.values.size() <= 1, "namespace and dict take names and at most one dict");
  if (!arguments.values.empty()) {
    require<DataError>(arguments.values[0].entries() != nullptr, "namespace and dict take a dict, not ",
                       type_name(arguments.values[0]));
    entries = *arguments.values[0].entries();
  }
  for (const auto& [name, value] : arguments.named) {
    std::erase_if(entries, [&](const auto& entry) { return entry.first == name; });
    entries.emplace_back(name, value);
  }
  if (global == Global::make_dict) return Value::dict(std::move(entries));
  Namespace& space = namespaces_.emplace_back();
  for (auto& [name, value] : entries) space.attributes.insert_or_assign(name, std::move(value));
  return Value::Variant(&space);
}

Value Rendering::make_range(const Arguments& arguments) {
  const Items& given = arguments.values;
  require<DataError>(arguments.named.empty() && !given.empty() && given.size() <= 3,
                     "range takes one to three integers");
  const int64_t first = given.size() > 1 ? integer_of(given[0], "range's start") : 0;
  const int64_t end = integer_of(given[given.size() > 1 ? 1 : 0], "range's end");
  const int64_t step = given.size() > 2 ? integer_of(given[2], "range's step") : 1;
  require<DataError>(step != 0, "range's step is 0");
  constexpr int64_t kMost = 100000;  // as Jinja's sandbox
  Items items;
  for (int64_t at = first; step > 0 ? at < end : at > end;) {
    require<DataError>(items.size() < kMost, "range has more than ", kMost, " items");
    items.push_back(Value::integer(at));
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  work_.take(items.size());
  return Value::list(std::move(items));
}

Value Rendering::call_macro(const Macro& macro, const Arguments& arguments) {
  const Statement& definition = *macro.definition;
  const auto& parameters = definition.parameters;
  require<DataError>(arguments.values.size() <= parameters.size(), "the macro ", definition.names[0], " takes ",
                     parameters.size(), " arguments, and has ", arguments.values.size());
  for (const auto& [name, value] : arguments.named)
    require<DataError>(std::ranges::any_of(parameters, [&](const auto& one) { return one.first == name; }),
                       "the macro ", definition.names[0], " has no parameter ", name);
  Scope own{&root_};
  Scope* const before = scope_;
  scope_ = &own;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Value* given = arguments.find(i, parameters[i].first);
    Value value = given                  ? *given
                  : parameters[i].second ? evaluate(*parameters[i].second)
                                         : Value::undefined(parameters[i].first);
    own.names.insert_or_assign(parameters[i].first, std::move(value));
  }
  scope_ = before;
  const int line = line_;
  Value text = Value::text(captured(definition.bodies[0], own));
  line_ = line;
  return text;
}

Value Rendering::arithmetic(const Expression& e) {
  const Value a = evaluate(*e.children[0]), b = evaluate(*e.children[1]);
  const std::string& sign = e.text;
  line_ = e.line;
  work_.take(weight_of(a) + weight_of(b));
  require<DataError>(sign != "%" || !a.string(), "formatting a string with % is not supported");
  if (is_number(a) && is_number(b)) {
    if (!a.as<double>() && !b.as<double>() && sign != "/")
      return integers(sign, integer_of(a, "a number"), integer_of(b, "a number"));
    const double x = number_of(a), y = number_of(b);
    if (sign == "+") return Value::Variant(x + y);
    if (sign == "-") return Value::Variant(x - y);
    if (sign == "*") return Value::Variant(x * y);
    if (sign == "**") return Value::Variant(std::pow(x, y));
    require<DataError>(y != 0, "division by zero");
    if (sign == "/") return Value::Variant(x / y);
    const double whole = std::floor(x / y);
    return Value::Variant(sign == "//" ? whole : x - whole * y);
  }
  if (sign == "+" && a.string() && b.string()) return Value::text(*a.string() + *b.string());
  if (sign == "+" && a.sequence() && b.sequence()) {
    Items items = *a.sequence()->items;
    items.insert(items.end(), b.sequence()->items->begin(), b.sequence()->items->end());
    return Value::list(std::move(items), a.sequence()->tuple);
  }
  if (sign == "*" && (a.string() || a.sequence()) && is_number(b)) return repeated(a, integer_of(b, "a factor"));
  if (sign == "*" && (b.string() || b.sequence()) && is_number(a)) return repeated(b, integer_of(a, "a factor"));
  const auto named = [](const Value& value) {
    return value.is_undefined() ? cat(value.as<Undefined>()->name, ", which is undefined,") : type_name(value);
  };
  throw DataError(cat(sign, " does not take ", named(a), " and ", named(b)));
}

Value Rendering::repeated(const Value& value, int64_t times) {
  const auto count = static_cast<uint64_t>(std::max<int64_t>(times, 0));
  uint64_t all = 0;
  if (__builtin_mul_overflow(count, static_cast<uint64_t>(weight_of(value)), &all)) all = UINT64_MAX;
  work_.take(all);
  std::string text;
  Items items;
  for (uint64_t i = 0; i < count; ++i) {
    if (value.string())
      text += *value.string();
    else
      items.insert(items.end(), value.sequence()->items->begin(), value.sequence()->items->end());
  }
  return value.string() ? Value::text(std::move(text)) : Value::list(std::move(items), value.sequence()->tuple);
}

Value Rendering::integers(const std::string& sign, int64_t a, int64_t b) {
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
    work_.take(static_cast<uint64_t>(b));
    for (int64_t i = 0; i < b && !overflow; ++i) overflow = __builtin_mul_overflow(result, a, &result);
  } else {
    require<DataError>(b != 0, "division by zero");
    if (b == -1) return integers(sign == "//" ? "-" : "*", 0, sign == "//" ? a : 0);
    const int64_t rest = a % b, below = rest != 0 && (rest < 0) != (b < 0) ? 1 : 0;  // Python rounds down
    result = sign == "//" ? a / b - below : rest + below * b;
  }
  require<DataError>(!overflow, "an integer is beyond 64 bits");
  return Value::integer(result);
}

bool Rendering::compare(const Expression& e) {
  Value left = evaluate(*e.children[0]);
  for (size_t i = 0; i < e.operators.size(); ++i) {
    Value right = evaluate(*e.children[i + 1]);
    const std::string& sign = e.operators[i];
    work_.take(std::min(weight_of(left), weight_of(right)));
    bool holds = false;
    if (sign == "==" || sign == "!=")
      holds = equal(left, right) == (sign == "==");
    else if (sign == "in" || sign == "not in")
      holds = apply_test("in", left, {{right}, {}}, work_) == (sign == "in");
    else if (sign == "<" || sign == ">=")
      holds = less(left, right) == (sign == "<");
    else
      holds = less(right, left) == (sign == ">");
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

std::string Rendering::date(const std::string& format) const {
  constexpr size_t kMostFormat = 256;
  require<DataError>(format.size() <= kMostFormat, "strftime_now: the format is longer than ", kMostFormat);
  if (format.empty()) return {};
  const std::time_t at = now_ ? static_cast<std::time_t>(*now_) : std::time(nullptr);
  std::tm parts{};
  require<DataError>((now_ ? gmtime_r(&at, &parts) : localtime_r(&at, &parts)) != nullptr,
                     "strftime_now: no such time");
  char text[64 * kMostFormat];
  return std::string(text, std::strftime(text, sizeof text, format.c_str(), &parts));
}

}  // namespace witan::jinja
