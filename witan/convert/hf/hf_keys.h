// An object of a config.json, untrusted, of which what was read is known: a key that nobody asked for may say that the
// model is another.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>

#include "witan/base/json.h"

namespace witan {

// Every message begins with `where` and names the key and its value. A null counts as absent. Throws ConfigError; what
// is absent takes `otherwise`, and is refused without one.
class HfKeys {
 public:
  // Keeps the object. Throws ConfigError if it is none.
  HfKeys(const Json& object, std::string where);

  // Null where it is absent or null.
  const Json* find(const char* key);
  bool has(const char* key) const;  // does not ask for it

  int64_t integer(const char* key, std::optional<int64_t> otherwise = {});  // at least 0
  double number(const char* key, std::optional<double> otherwise = {});
  bool flag(const char* key, std::optional<bool> otherwise = {});
  std::string text(const char* key, std::optional<std::string> otherwise = {});

  // Refuses any value but this one, and takes an absent key for it.
  void only(const char* key, const Json& value, const char* why);
  [[noreturn]] void refuse(const char* key, const std::string& why) const;
  // Refuses keys that nobody has asked for, unless they are known to be harmless or say nothing.
  void finish() const;
  const std::string& where() const { return where_; }

 private:
  template <class T>
  T absent(const char* key, std::optional<T> otherwise) const;

  const Json& object_;
  std::string where_;
  std::set<std::string> asked_;
};

}  // namespace witan
