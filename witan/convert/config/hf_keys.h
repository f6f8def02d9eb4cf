// The keys of a config.json, untrusted, and the keys of Witan that they set. What was read is known, since a key that
// nobody asked for may say that the model is another; what Witan's keys refuse is said in the words of the file.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>

#include "witan/base/json.h"
#include "witan/model/config.h"

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

// Throws ConfigError for what Witan's keys refuse, `why`: with the keys of `config` that the ones in it were taken
// from, and their values.
[[noreturn]] void refuse_hf_model(const Json& config, const std::string& where, const std::string& why);

// Sets keys one by one as a file would set them. Keeps references to the model and to the file. Throws ConfigError as
// refuse_hf_model().
class HfSettings {
 public:
  HfSettings(ModelConfig& model, const Json& config, std::string where);

  void set(const char* key, const std::string& text) const;
  void set(const char* key, const char* text) const { set(key, std::string(text)); }
  void set(const char* key, int64_t value) const { set(key, std::to_string(value)); }
  void set(const char* key, double value) const;
  void set(const char* key, bool value) const { set(key, value ? "true" : "false"); }

  const ModelConfig& model() const { return model_; }
  HfSettings of(ModelConfig& other) const { return {other, config_, where_}; }  // the same file's

 private:
  ModelConfig& model_;
  Fields fields_;
  const Json& config_;
  std::string where_;
};

}  // namespace witan
