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

// Every message begins with `where` and names the key and its value. A key that is absent or null has its value in
// `defaults`, else `otherwise`, and is refused without either. Throws ConfigError.
class HfKeys {
 public:
  // Keeps both objects. Throws ConfigError unless they are objects.
  HfKeys(const Json& object, std::string where, const Json* defaults = nullptr);

  // Null where there is no value, not even by default.
  const Json* find(const char* key);
  bool has(const char* key) const;      // given, and not null; does not ask for it
  bool is_null(const char* key) const;  // given as null
  bool is_default(const char* key);     // or absent

  int64_t integer(const char* key, std::optional<int64_t> otherwise = {});  // at least 0
  double number(const char* key, std::optional<double> otherwise = {});
  bool flag(const char* key, std::optional<bool> otherwise = {});
  std::string text(const char* key, std::optional<std::string> otherwise = {});

  // Of keys whose null differs from their default, because Python's None is no number and not true.
  std::optional<int64_t> nullable_integer(const char* key);
  bool truthy(const char* key, std::optional<bool> otherwise = {});

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
  const Json* defaults_;
  std::string where_;
  std::set<std::string> asked_;
};

}  // namespace witan
