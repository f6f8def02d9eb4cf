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
#include "witan/tensor/region.h"

namespace witan {

inline constexpr const char* kManifestName = "manifest.json";

struct Manifest {
  struct File {
    std::string name;  // [A-Za-z0-9._-]+, not beginning with a dot: it cannot leave the folder
    FileDigest digest;
  };
  struct Part {
    size_t shard = 0;    // index of shards
    Region region = {};  // of the flat global tensor
  };
  struct Entry {
    DType dtype = DType::f32;
    Shape shape;              // global
    std::vector<Part> parts;  // by their first element; together exactly the elements of the tensor
    bool buffer = false;      // StateTensor::Kind::buffer
  };

  int64_t step = 0;
  std::vector<File> shards;  // safetensors
  std::vector<File> files;   // others
  std::map<std::string, Entry> tensors;
  Json scalars = Json::object();
};

// A part as the manifest, and the reports that it is made of, say it.
Json json_of(const Manifest::Part& part);
// Its region, of a tensor of so many elements. Throws CheckpointError for what is none.
Region region_member(const Json& part, int64_t elements, std::string_view where);

// How a shard names a part: NAME when it is the whole tensor, NAME[first:end] for whole rows of dim 0, else
// NAME[first+length] or NAME[first+lengthxruns/distance] in elements.
std::string part_name(const std::string& name, const Shape& global, const Region& region);
// The shape that it has there: rows keep theirs, other parts are flat.
Shape part_shape(const Shape& global, const Region& region);

// Whether the regions hold each of `elements` elements exactly once; else how they do not. Regions of several runs must
// be cut alike: those with the same runs and distance, one after the other, fill what is between two runs. Takes time
// for the regions alone, however many elements or runs they say they have; their ends must not pass `elements`.
std::string gap_or_overlap(std::vector<Region> regions, int64_t elements);

// Throws CheckpointError("WHERE: …") unless the manifest keeps what its comments say.
void check_manifest(const Manifest& manifest, std::string_view where);

// The same manifest makes the same text.
std::string manifest_text(const Manifest& manifest);
// Parses hostile bytes. Throws CheckpointError.
Manifest parse_manifest(std::string_view text, std::string_view where);

// `content`, an object, as text that ends with the hash of all that stands before it, so that every flipped bit shows.
std::string seal(const Json& content);

}  // namespace witan
