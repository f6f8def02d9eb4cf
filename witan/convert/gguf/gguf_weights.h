// The weights of a GGUF file, in one part or several, by Witan's names.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "witan/convert/foreign_weights.h"
#include "witan/convert/gguf/gguf_config.h"
#include "witan/formats/gguf.h"

namespace witan {

// A model's GGUF file, or all the parts of a split one: NAME-00001-of-00003.gguf and so on. The first part has the
// keys of the model; each has its own tensors, with split.no, split.count and split.tensors.count.
// Source: llama.cpp's tools/gguf-split
class GgufParts {
 public:
  // Opens a file, all parts of a split model given one of them, or the only model in a folder. Throws what GgufFile
  // throws; CheckpointError naming a missing part, and for a folder with several models or none; CorruptionError for
  // parts that do not belong together.
  explicit GgufParts(const fs::path& path);

  const fs::path& path() const { return parts_.front().path(); }  // of the first part
  const GgufMetadata& metadata() const { return parts_.front().metadata(); }
  const std::vector<GgufFile::Placed>& tensors() const { return tensors_; }  // in the order of the parts
  const GgufFile::Placed* find(std::string_view name) const;

 private:
  void check_part(const GgufFile& part, int64_t number, int64_t count) const;

  std::deque<GgufFile> parts_;
  std::vector<GgufFile::Placed> tensors_;
  std::map<std::string, size_t, std::less<>> index_;
};

// Whether the path is a GGUF file, or a folder that has GGUF files and no config.json.
bool is_gguf_model(const fs::path& path);

class GgufWeights : public ForeignWeights {
 public:
  // Opens what GgufParts opens. Throws CorruptionError for a damaged file; ConfigError for a model that Witan cannot
  // represent; CheckpointError if a tensor is missing, unexpected, or has a shape or type that Witan does not read.
  explicit GgufWeights(const fs::path& path, MtpLayers mtp = MtpLayers::take);

  const ModelConfig& model() const override {
    return hf_.model;
  }  // its dtype is the narrowest that can represent all weights
  std::string where() const override { return file_.path().string(); }

  std::string format() const override { return "gguf"; }
  const Architecture& architecture() const override { return *hf_.architecture; }
  int64_t positions() const override { return hf_.positions; }
  std::vector<Source> sources() const override;
  void release(const Link& link) override;

  const GgufParts& file() const { return file_; }

 private:
  HeldTensor hold(const std::string& name) override;
  void check_tensors(const std::vector<std::pair<std::string, Shape>>& expected, MtpLayers mtp);
  bool is_of_borrowed_keys(std::string_view name) const;  // as is_of_borrowed_keys() in tensor_names.h
  bool is_spare_mtp(const GgufFile::Placed& tensor, MtpLayers mtp);
  bool is_held_by(Element wide, const std::string& name);

  GgufParts file_;
  HfModel hf_;
  std::map<std::string, ValueMap> maps_;  // from the file's values to Witan's, by the file's tensor
};

}  // namespace witan
