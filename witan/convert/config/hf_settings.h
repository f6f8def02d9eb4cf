// Witan's keys of a model that is read from a config.json: what they refuse is said in the words of that file.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "witan/base/json.h"
#include "witan/model/config.h"

namespace witan {

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
