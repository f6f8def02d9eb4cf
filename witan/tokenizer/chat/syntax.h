// The syntax tree of a template.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "witan/tokenizer/chat/value.h"

namespace witan::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  enum class Kind {
    constant,     // value
    name,         // text
    list,         // of children; a tuple: text "tuple"
    dict,         // children: key, value, key, value ...
    attribute,    // child 0, text
    item,         // child 0 [child 1]
    slice,        // child 0 [child 1 : child 2 : child 3]; null where one is left out
    call,         // child 0, children 1.. and named
    filter,       // child 0 | text, children 1.. and named
    test,         // child 0 is text, children 1..
    conditional,  // child 0 if child 1 else child 2, which may be null
    all,          // and
    any,          // or
    negation,     // not
    minus,
    plus,
    arithmetic,  // child 0 text child 1
    compare,     // child 0, then children 1.. by operators
    concat,      // ~
  };
  Kind kind;
  int line = 0;
  int height = 1;
  std::string text = {};
  Value value = {};
  std::vector<ExpressionPtr> children = {};
  std::vector<std::pair<std::string, ExpressionPtr>> named = {};
  std::vector<std::string> operators = {};
};

// A name to be set, or a tuple of targets.
struct Target {
  std::string name = {};
  std::vector<Target> parts = {};
};

struct Statement;
using Block = std::vector<Statement>;

struct Statement {
  enum class Kind {
    text,        // text
    output,      // expression
    branch,      // if: conditions and bodies; an extra body is else
    loop,        // for target in expression if condition: bodies[0], else bodies[1]
    set,         // target = expression; or target.attribute = expression
    set_block,   // target = bodies[0], passed through filters
    macro,       // target (parameters): bodies[0]
    filter,      // bodies[0], passed through filters
    generation,  // bodies[0]
    stop,        // break
    next,        // continue
  };
  Kind kind;
  int line = 0;
  std::string text = {};
  std::string attribute = {};
  Target target = {};
  ExpressionPtr expression = {};
  std::vector<ExpressionPtr> conditions = {};
  std::vector<Block> bodies = {};
  std::vector<std::pair<std::string, ExpressionPtr>> parameters = {};  // with defaults or nullptr
  std::vector<ExpressionPtr> filters = {};                             // applied to a constant in child 0
};

struct Macro {
  const Statement* definition;
};

}  // namespace witan::jinja
