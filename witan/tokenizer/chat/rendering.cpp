#include "witan/tokenizer/chat/rendering.h"

#include <algorithm>

#include "witan/tokenizer/chat/builtins.h"

namespace witan::jinja {
namespace {

constexpr int kMostCalls = 1000;  // nested calls of evaluate() and execute()
constexpr size_t kMostOutput = 256 << 20;
// The cost of a step of the interpreter, and of an iteration of a loop, which creates a scope.
constexpr uint64_t kStep = 8, kIteration = 32;

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

Rendering::Rendering(const std::string& name, uint64_t most_work, std::optional<int64_t> now, Missing missing)
    : name_(name), work_(most_work), now_(now), missing_(missing) {
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
  return {std::move(written_.bytes), std::move(generated_), std::move(written_.given)};
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
      write({statement.text});
      break;
    case Kind::output: {
      const Value value = evaluate(*statement.expression);
      require<DataError>(missing_ == Missing::prints_nothing || !value.is_undefined(),
                         value.is_undefined() ? value.as<Undefined>()->name : "", " is undefined");
      work_.take(weight_of(value));
      if (const MarkedText* text = value.marked())
        write(*text);
      else
        write(shown(value));
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
      scope_->names.insert_or_assign(statement.target.name, Value::Variant(static_cast<const Macro*>(&macros_.back())));
      break;
    case Kind::filter: {
      Scope own{scope_};
      write(marked_str(filtered(statement, Value::text(captured(statement.bodies[0], own)))));
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

void Rendering::bind(const Target& target, const Value& value) {
  if (target.parts.empty()) {
    scope_->names.insert_or_assign(target.name, value);
    return;
  }
  const Items parts = items_of(value);
  require<DataError>(parts.size() == target.parts.size(), target.parts.size(), " names are set to ", parts.size(),
                     " values");
  for (size_t i = 0; i < parts.size(); ++i) bind(target.parts[i], parts[i]);
}

Items Rendering::items_of_loop(const Statement& statement) {
  const Value all = evaluate(*statement.expression);
  work_.take(weight_of(all));
  charge_items(all, work_);
  Items items = items_of(all);
  if (statement.conditions.empty()) return items;
  Items kept;
  Scope own{scope_};
  scope_ = &own;
  for (const Value& item : items) {
    bind(statement.target, item);
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
    work_.take(kIteration);
    Scope own{scope_};  // one per iteration: variables do not survive it
    scope_ = &own;
    own.names.insert_or_assign("loop", Value::Variant(static_cast<const Loop*>(&state)));
    bind(statement.target, (*items)[state.index]);
    const Leaving leaving = execute(statement.bodies[0]);
    scope_ = own.parent;
    if (leaving == Leaving::stop) break;
  }
  return Leaving::no;
}

MarkedText Rendering::captured(const Block& block, Scope& scope) {
  MarkedText text;
  MarkedText* const out = out_;
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
    scope_->names.insert_or_assign(statement.target.name, std::move(value));
    return;
  }
  Value value = evaluate(*statement.expression);
  if (statement.attribute.empty()) return bind(statement.target, value);
  const Value target = find_name(statement.target.name);
  Namespace* const* space = target.as<Namespace*>();
  require<DataError>(space != nullptr, statement.target.name, " is ", type_name(target),
                     ": only attributes of a namespace can be set");
  (*space)->attributes.insert_or_assign(statement.attribute, std::move(value));
}

void Rendering::generation(const Statement& statement) {
  require<DataError>(out_ == &written_, "{% generation %} within a macro or a captured block is not supported");
  const size_t begin = out_->bytes.size();
  Scope own{scope_};
  scope_ = &own;
  execute(statement.bodies[0]);
  scope_ = own.parent;
  generated_.push_back({begin, out_->bytes.size()});
}

void Rendering::write(const MarkedText& text) {
  work_.take(1 + text.bytes.size() / 8);
  require<DataError>(out_->bytes.size() + text.bytes.size() <= kMostOutput, "the template writes more than ",
                     format_bytes(kMostOutput));
  out_->append(text);
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
    case Kind::attribute: {
      const Value value = evaluate(*e.children[0]);
      charge_lookup(value);
      return attribute_of(value, e.text);
    }
    case Kind::item: {
      const Value value = evaluate(*e.children[0]);
      if (value.string()) work_.take(weight_of(value));
      charge_lookup(value);
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
    case Kind::plus:
      return apply_sign(e.kind == Kind::minus ? "-" : "+", evaluate(*e.children[0]), work_);
    case Kind::arithmetic:
      return arithmetic(e);
    case Kind::compare:
      return Value::boolean(compare(e));
    case Kind::concat:
      return concat(e);
  }
  return {};
}

Value Rendering::find_name(const std::string& name) {
  for (const Scope* scope = scope_; scope; scope = scope->parent) {
    work_.take(1);
    if (const auto found = scope->names.find(name); found != scope->names.end()) return found->second;
  }
  return Value::undefined(name);
}

// repr() of a container visits every character.
MarkedText Rendering::shown(const Value& value) {
  if (!value.string()) work_.take(weight_of(value) * 4);
  return marked_str(value);
}

// Finding a key compares it with all keys of the dict.
void Rendering::charge_lookup(const Value& value) {
  if (const Entries* entries = value.entries()) work_.take(entries->size() / 4);
}

Value Rendering::concat(const Expression& e) {
  MarkedText text;
  for (const ExpressionPtr& child : e.children) {
    const Value value = evaluate(*child);
    work_.take(1 + text.bytes.size() / 8 + weight_of(value));
    text.append(shown(value));
  }
  return Value::text(std::move(text));
}

Value Rendering::evaluate_dict(const Expression& e) {
  Entries entries;
  for (size_t i = 0; i + 1 < e.children.size(); i += 2) {
    Value key = evaluate(*e.children[i]), value = evaluate(*e.children[i + 1]);
    work_.take(1 + entries.size());
    set_entry(entries, std::move(key), std::move(value));
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
  return slice_of(value, from, to, bound(3).value_or(1), work_);
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
  throw DataError(cat(name, " is ", type_name(function), " and cannot be called"));
}

Value Rendering::call_global(Global global, const Arguments& arguments) {
  switch (global) {
    case Global::range:
      return make_range(arguments, work_);
    case Global::raise_exception:
      throw ConversationError(
          cat(name_, ":", line_, ": ", arguments.values.empty() ? std::string() : str(arguments.values[0])));
    case Global::strftime_now:
      arguments.check("strftime_now", {"format"});
      require<DataError>(arguments.values.size() == 1 && arguments.values[0].string(), "strftime_now takes a format");
      return Value::text(formatted_time(*arguments.values[0].string(), now_));
    case Global::make_namespace:
    case Global::make_dict:
      break;
  }
  Entries entries = make_entries(arguments, work_);
  if (global == Global::make_dict) return Value::dict(std::move(entries));
  Namespace& space = namespaces_.emplace_back();
  for (auto& [name, value] : entries) space.attributes.insert_or_assign(str(name), std::move(value));
  return Value::Variant(&space);
}

Value Rendering::call_macro(const Macro& macro, const Arguments& arguments) {
  const Statement& definition = *macro.definition;
  const auto& parameters = definition.parameters;
  require<DataError>(arguments.values.size() <= parameters.size(), "the macro ", definition.target.name, " takes ",
                     parameters.size(), " arguments, but got ", arguments.values.size());
  for (const auto& [name, value] : arguments.named)
    require<DataError>(std::ranges::any_of(parameters, [&](const auto& one) { return one.first == name; }),
                       "the macro ", definition.target.name, " has no parameter ", name);
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
  line_ = e.line;
  return apply_arithmetic(e.text, a, b, work_);
}

bool Rendering::compare(const Expression& e) {
  Value left = evaluate(*e.children[0]);
  for (size_t i = 0; i < e.operators.size(); ++i) {
    Value right = evaluate(*e.children[i + 1]);
    if (!apply_comparison(e.operators[i], left, right, work_)) return false;
    left = std::move(right);
  }
  return true;
}

}  // namespace witan::jinja
