// The arguments of a filter, test, method or macro, once they have values.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/tokenizer/chat/value.h"
#include "witan/tokenizer/chat/work.h"

namespace witan::jinja {

// Before items_of() makes a value of every character of a string.
inline void charge_items(const Value& value, Work& work) {
  if (const std::string* text = value.string()) work.take(text->size() * 4);
}

struct Arguments {
  Items values;
  std::vector<std::pair<std::string, Value>> named;

  // The argument in this place or of this name, or null.
  const Value* find(size_t place, std::string_view name) const {
    if (place < values.size()) return &values[place];
    return find(name);
  }
  const Value* find(std::string_view name) const {
    for (const auto& [key, value] : named)
      if (key == name) return &value;
    return nullptr;
  }
  // Throws DataError unless all arguments are among these; `what` has them.
  void check(const std::string& what, std::initializer_list<std::string_view> names) const {
    require<DataError>(values.size() <= names.size(), what, " takes at most ", names.size(), " arguments, and has ",
                       values.size());
    for (const auto& [key, value] : named)
      require<DataError>(std::find(names.begin(), names.end(), key) != names.end(), what,
                         " is not supported with the argument ", clipped(key));
  }
  uint64_t weight() const {
    uint64_t sum = 0;
    for (const Value& value : values) sum += weight_of(value);
    for (const auto& [key, value] : named) sum += weight_of(value);
    return sum;
  }
};

}  // namespace witan::jinja
