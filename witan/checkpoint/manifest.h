// manifest.json: what a checkpoint consists of (docs/formats/checkpoint.md). It is written last: a folder with a whole
// manifest is a whole checkpoint.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/json.h"
#include "witan/checkpoint/safetensors.h"
#include "witan/tensor/shape.h"

namespace witan {

inline constexpr const char* kManifestName = "manifest.json";

struct Manifest {
  struct File {
    std::string name;  // [A-Za-z0-9._-]+, not beginning with a dot: it cannot leave the folder
    FileDigest digest;
  };
  struct Part {
    size_t shard = 0;  // index of shards
    int64_t first_row = 0, rows = 0;
  };
  struct Entry {
    DType dtype = DType::f32;
    Shape shape;              // global
    std::vector<Part> parts;  // by first_row; together exactly the rows of the tensor
  };

  int64_t step = 0;
  std::vector<File> shards;  // safetensors
  std::vector<File> files;   // others
  std::map<std::string, Entry> tensors;
  Json scalars = Json::object();
};

// Rows of dim 0; 1 for a scalar.
int64_t row_count(const Shape& shape);
// How a shard names a part: NAME when it is the whole tensor, else NAME[first:end].
std::string part_name(const std::string& name, const Manifest::Entry& entry, const Manifest::Part& part);

// Throws CheckpointError("WHERE: …") unless the manifest keeps what its comments say.
void check_manifest(const Manifest& manifest, std::string_view where);

// The same manifest makes the same text.
std::string manifest_text(const Manifest& manifest);
// Parses hostile bytes. Throws CheckpointError.
Manifest parse_manifest(std::string_view text, std::string_view where);

// `content`, an object, as text that ends with the hash of all that stands before it, so that every flipped bit shows.
std::string seal(const Json& content);

}  // namespace witan
