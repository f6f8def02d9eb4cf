// A GGUF file, in one part or several, as weights under Witan's names.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "witan/convert/foreign_weights.h"
#include "witan/convert/gguf/gguf_config.h"
#include "witan/convert/gguf/gguf_links.h"
#include "witan/convert/gguf/gguf_parts.h"

namespace witan {

class GgufWeights : public ForeignWeights {
 public:
  // Opens a file, the parts of a split one, or a folder with one of these (GgufParts). Throws CorruptionError for a
  // damaged one; ConfigError for a model that Witan cannot represent; CheckpointError where a tensor is missing, has
  // another shape or a type that Witan does not read, or is left over.
  explicit GgufWeights(const fs::path& path);

  const ModelConfig& model() const override { return hf_.model; }  // in the narrowest dtype that holds all weights
  std::string where() const override { return file_.path().string(); }

  std::string format() const override { return "gguf"; }
  const Architecture& architecture() const override { return *hf_.architecture; }
  int64_t positions() const override { return hf_.positions; }
  std::vector<Source> sources() const override;
  void release(const Link& link) override;

  const GgufParts& file() const { return file_; }

 private:
  HeldTensor hold(const std::string& name) override;
  void check_tensors(const std::vector<std::pair<std::string, Shape>>& expected);
  bool is_held_by(Element wide, const std::string& name);

  GgufParts file_;
  HfModel hf_;
};

}  // namespace witan
