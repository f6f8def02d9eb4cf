// An untrusted object of a config.json, and the Witan keys that it sets. The reader records which keys were read, since
// an unread key may change the model, and reports what Witan's keys refuse in the words of the file.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>

#include "witan/base/json.h"
#include "witan/model/config.h"

namespace witan {

// Every message begins with `where` and names the key and its value. An absent or null key takes its value from
// `defaults`, then `otherwise`; without either it is refused. Throws ConfigError.
class HfKeys {
 public:
  // Keeps references. Throws ConfigError unless `object` is an object.
  HfKeys(const Json& object, std::string where, const Json* defaults = nullptr);

  // Null if there is no value, not even a default.
  const Json* find(const char* key);
  bool has(const char* key) const;      // given and not null; does not count as read
  bool is_null(const char* key) const;  // given as null
  bool is_default(const char* key);     // or absent

  int64_t integer(const char* key, std::optional<int64_t> otherwise = {});  // at least 0
  double number(const char* key, std::optional<double> otherwise = {});
  bool flag(const char* key, std::optional<bool> otherwise = {});
  std::string text(const char* key, std::optional<std::string> otherwise = {});

  // For keys that differ from their default if they are null, since Python's None is neither a number nor true.
  std::optional<int64_t> nullable_integer(const char* key);
  bool truthy(const char* key, std::optional<bool> otherwise = {});

  // Refuses any other value; an absent key has this one.
  void only(const char* key, const Json& value, const char* why);
  [[noreturn]] void refuse(const char* key, const std::string& why) const;
  // Refuses keys that were not read, unless they are empty or known not to change what the model computes.
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

// Throws ConfigError for what Witan's keys refuse (`why`), with the keys of `config` that they were taken from and
// their values.
[[noreturn]] void refuse_hf_model(const Json& config, const std::string& where, const std::string& why);

// Sets Witan's keys one by one, as a configuration file would. Keeps references to the model and to `config`. Throws
// ConfigError like refuse_hf_model().
class HfSettings {
 public:
  HfSettings(ModelConfig& model, const Json& config, std::string where);

  void set(const char* key, const std::string& text) const;
  void set(const char* key, const char* text) const { set(key, std::string(text)); }
  void set(const char* key, int64_t value) const { set(key, std::to_string(value)); }
  void set(const char* key, double value) const;
  void set(const char* key, bool value) const { set(key, value ? "true" : "false"); }

  const ModelConfig& model() const { return model_; }
  HfSettings of(ModelConfig& other) const { return {other, config_, where_}; }  // of the same file

 private:
  ModelConfig& model_;
  Fields fields_;
  const Json& config_;
  std::string where_;
};

}  // namespace witan
