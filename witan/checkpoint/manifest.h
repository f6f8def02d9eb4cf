// manifest.json: the list of everything in a checkpoint (docs/formats/checkpoint.md). It is written last: a folder with
// an intact manifest is a complete checkpoint.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/json.h"
#include "witan/checkpoint/safetensors.h"
#include "witan/checkpoint/state.h"
#include "witan/tensor/region.h"

namespace witan {

inline constexpr const char* kManifestName = "manifest.json";

struct Manifest {
  struct File {
    std::string name;  // [A-Za-z0-9._-]+ without a leading dot, so that it cannot leave the folder
    FileDigest digest;
  };
  struct Part {
    size_t shard = 0;    // index into shards
    Region region = {};  // in the flat global tensor
  };
  struct Entry {
    DType dtype = DType::f32;
    Shape shape;              // global
    std::vector<Part> parts;  // ordered by first element; together they cover each element exactly once
    StateTensor::Kind kind = StateTensor::Kind::value;
  };

  int64_t step = 0;
  std::vector<File> shards;  // safetensors
  std::vector<File> files;   // other files
  using Tensors = std::map<std::string, Entry>;
  Tensors tensors;
  Json scalars = Json::object();

  // The most precise values of a parameter: its float32 master if there is one, else its value, else tensors.end().
  Tensors::const_iterator master_or_value(const std::string& parameter) const;
};

// A part as written in the manifest, and in the reports from which the manifest is built.
Json json_of(const Manifest::Part& part);
// The region of a part in a tensor of `elements` elements. Throws CheckpointError for an invalid one.
Region region_member(const Json& part, int64_t elements, std::string_view where);

// The name of a part in its shard: NAME if it is the whole tensor, NAME[first:end] for whole rows of dim 0, else
// NAME[first+length] or NAME[first+lengthxruns/distance] in elements.
std::string part_name(const std::string& name, const Shape& global, const Region& region);
// The shape of the part in the shard file: rows keep their shape, other parts are flat.
Shape part_shape(const Shape& global, const Region& region);

// Checks that the regions contain each of `elements` elements exactly once; otherwise returns a description of the gap
// or overlap. Regions with several runs must come in sets with the same runs and distance that fill the gaps between
// their runs. The time depends only on the number of regions, however many elements or runs they claim; their ends must
// not exceed `elements`.
std::string gap_or_overlap(std::vector<Region> regions, int64_t elements);

// Throws CheckpointError("WHERE: …") unless the manifest satisfies the comments of its members.
void check_manifest(const Manifest& manifest, std::string_view where);

// Deterministic: the same manifest gives the same text.
std::string manifest_text(const Manifest& manifest);
// Parses untrusted bytes. Throws CheckpointError.
Manifest parse_manifest(std::string_view text, std::string_view where);

// `content`, an object, as text that ends with the hash of everything before it, so that every flipped bit is detected.
std::string seal(const Json& content);

}  // namespace witan
