// A GGUF file as weights under Witan's names: nothing in it is passed over without a word.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "witan/base/gguf.h"
#include "witan/convert/foreign_weights.h"
#include "witan/convert/gguf_config.h"
#include "witan/convert/gguf_links.h"

namespace witan {

class GgufWeights : public ForeignWeights {
 public:
  // Opens the file. Throws CorruptionError for a damaged one; ConfigError for a model that Witan cannot represent;
  // CheckpointError where a tensor is missing, has another shape or a type that Witan does not read, or is left over.
  explicit GgufWeights(const fs::path& path);

  const ModelConfig& model() const override { return hf_.model; }  // in the narrowest dtype that holds all weights
  std::string where() const override { return file_.path().string(); }
  std::map<std::string, Shape> weights() const override;
  void read(const std::string& name, int64_t first, int64_t count, double* out) override;

  std::string format() const override { return "gguf"; }
  const Architecture& architecture() const override { return *hf_.architecture; }
  int64_t positions() const override { return hf_.positions; }
  const NameStyle& style() const override { return style_; }
  std::vector<Source> sources() const override;
  const std::vector<Link>& links() const override { return links_; }
  const std::vector<ModelTensor>& tensors() const override { return model_tensors_; }
  const std::map<std::string, std::string>& notes() const override { return notes_; }
  void gather_to(const Link& link, int64_t first, int64_t count, Element type, std::byte* out) override;
  void release(const Link& link) override;

  const GgufFile& file() const { return file_; }

 private:
  HeldTensor hold(const std::string& name) const;
  void check_tensors(const std::vector<std::pair<std::string, Shape>>& expected);
  void choose_dtype();
  bool is_held_by(Element wide, const std::string& name) const;

  GgufFile file_;
  HfModel hf_;
  NameStyle style_;
  std::vector<ModelTensor> model_tensors_;
  std::vector<Link> links_;
  std::map<std::string, size_t> index_;  // of links_
  std::map<std::string, std::string> notes_;
};

}  // namespace witan
