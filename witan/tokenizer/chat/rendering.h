// Runs a parsed template.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>

#include "witan/tokenizer/chat/arguments.h"
#include "witan/tokenizer/chat/chat_template.h"
#include "witan/tokenizer/chat/syntax.h"

namespace witan::jinja {

// One rendering of one template. Bounded in work, depth and output.
class Rendering {
 public:
  enum class Missing { prints_nothing, is_an_error };  // what printing an undefined name does

  // `name` is the template's. `most_work` is the limit of Work. `now` as in ChatTemplateOptions.
  Rendering(const std::string& name, uint64_t most_work, std::optional<int64_t> now,
            Missing missing = Missing::prints_nothing);

  void define(const std::string& name, Value value);
  // Throws as ChatTemplate::render() does. To be called once.
  RenderedChat run(const Block& block);

 private:
  struct Scope {
    Scope* parent;
    std::map<std::string, Value, std::less<>> names = {};
  };
  enum class Leaving { no, stop, next };
  class Depth;

  Leaving execute(const Block& block);
  Leaving execute(const Statement& statement);
  Leaving branch(const Statement& statement);
  Leaving loop(const Statement& statement);
  Items items_of_loop(const Statement& statement);
  void bind(const Target& target, const Value& value);
  void set(const Statement& statement);
  void generation(const Statement& statement);
  // The output of the block, which runs in `scope`.
  MarkedText captured(const Block& block, Scope& scope);
  Value filtered(const Statement& statement, Value value);
  void write(const MarkedText& text);

  Value evaluate(const Expression& e);
  Value find_name(const std::string& name);
  Value evaluate_dict(const Expression& e);
  MarkedText shown(const Value& value);
  void charge_lookup(const Value& value);
  Value slice(const Expression& e);
  Value concat(const Expression& e);
  Value call(const Expression& e);
  Value call_global(Global global, const Arguments& arguments);
  Value call_macro(const Macro& macro, const Arguments& arguments);
  Value arithmetic(const Expression& e);
  bool compare(const Expression& e);
  Arguments arguments_of(const Expression& e, size_t first);

  const std::string& name_;
  Work work_;
  std::optional<int64_t> now_;
  Missing missing_;
  Scope root_{nullptr};
  Scope* scope_ = &root_;
  std::deque<Namespace> namespaces_;
  std::deque<Loop> loops_;
  std::deque<Macro> macros_;
  MarkedText written_;
  std::vector<TextSpan> generated_;
  MarkedText* out_ = &written_;
  int line_ = 0, depth_ = 0;
};

}  // namespace witan::jinja
