// A model's GGUF file, or all the parts of a split one: NAME-00001-of-00003.gguf and so on, of which the first has the
// keys of the model, and each its own tensors, with split.no, split.count and split.tensors.count.
// Source: llama.cpp's tools/gguf-split
#pragma once

#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "witan/formats/gguf.h"

namespace witan {

class GgufParts {
 public:
  // Opens a file, the parts that a part of a split model belongs to, or the only model of a folder. Throws what
  // GgufFile throws; CheckpointError naming a part that is missing, and for a folder with several models or none;
  // CorruptionError for parts that do not belong together.
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

// Whether the path is a GGUF file, or a folder that is known for nothing but having some.
bool is_gguf_model(const fs::path& path);

}  // namespace witan
