// The arguments of a built-in function, evaluated, and the budget of work that it draws on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/tokenizer/chat/value.h"

namespace witan::jinja {

// The budget of a rendering: a template of unknown origin must terminate.
class Work {
 public:
  explicit Work(uint64_t limit) : left_(limit), limit_(limit) {}

  // Charges the visit or creation of so many values or 8-byte pieces of text, in advance. Throws DataError once the
  // budget is exceeded.
  void take(uint64_t units) {
    require<DataError>(units <= left_, "the template does more work than the ", limit_,
                       " operations it may take: simplify its loops, or shorten the messages");
    left_ -= units;
  }

 private:
  uint64_t left_, limit_;
};

// Charges what items_of() costs for a string, of which it makes a value per character.
inline void charge_items(const Value& value, Work& work) {
  if (const std::string* text = value.string()) work.take(text->size() * 4);
}

struct Arguments {
  Items values;
  std::vector<std::pair<std::string, Value>> named;

  // The argument at this position or with this name, or nullptr.
  const Value* find(size_t place, std::string_view name) const {
    if (place < values.size()) return &values[place];
    return find(name);
  }
  const Value* find(std::string_view name) const {
    for (const auto& [key, value] : named)
      if (key == name) return &value;
    return nullptr;
  }
  // Throws DataError unless `names` covers all arguments; `what` names the function in the message.
  void check(const std::string& what, std::initializer_list<std::string_view> names) const {
    require<DataError>(values.size() <= names.size(), what, " takes at most ", names.size(), " arguments, but got ",
                       values.size());
    for (const auto& [key, value] : named)
      require<DataError>(std::find(names.begin(), names.end(), key) != names.end(), what,
                         " does not support the argument ", clipped(key));
  }
  uint64_t weight() const {
    uint64_t sum = 0;
    for (const Value& value : values) sum += weight_of(value);
    for (const auto& [key, value] : named) sum += weight_of(value);
    return sum;
  }
};

}  // namespace witan::jinja
