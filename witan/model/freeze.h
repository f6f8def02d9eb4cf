// Which parameters of a model are not trained: those that `freeze` names and, where there are adapters, all others.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "witan/model/config.h"
#include "witan/nn/lora.h"
#include "witan/nn/parameter.h"

namespace witan {

// The adapters that the config asks for; null: none. Throws ConfigError for a target that is no matrix's name.
std::shared_ptr<const LoraConfig> lora_of(const ModelConfig& config);

class Freeze {
 public:
  explicit Freeze(const ModelConfig& config);

  bool any() const { return lora_ || !patterns_.empty(); }
  bool takes(const ParameterSpec& spec) const;
  // Of config.freeze, in its order: a ParameterKind's name, else a glob on parameters' names.
  const std::vector<std::string>& patterns() const { return patterns_; }
  static bool fits(const std::string& pattern, const ParameterSpec& spec);

 private:
  bool lora_;
  std::vector<std::string> patterns_;
};

}  // namespace witan
