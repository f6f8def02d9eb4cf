// Reads the files of a checkpoint after comparing their hashes.
#pragma once

#include <map>
#include <span>

#include "witan/base/files/file.h"
#include "witan/checkpoint/manifest.h"
#include "witan/checkpoint/safetensors.h"

namespace witan {

inline constexpr const char* kWayOut = "restore the file from a copy, or resume from another checkpoint";

// Returns the pages within these bytes of a mapped file to the kernel; they are read again when touched. So a
// checkpoint is streamed through memory and is never resident next to the run.
void release_pages(std::span<const std::byte> mapped);

// Throws CheckpointError naming the file when it cannot be read or its size or hash is not the manifest's.
MappedFile open_verified(const fs::path& folder, const Manifest::File& file);

// Shards, each opened and verified when it is first used.
class Shards {
 public:
  // The manifest must outlive it.
  Shards(fs::path folder, const Manifest& manifest) : folder_(std::move(folder)), manifest_(manifest) {}

  // The bytes of a part, in the order of its region. Throws CheckpointError like open_verified, and if the shard does
  // not contain the part.
  std::span<const std::byte> bytes_of(const std::string& name, const Manifest::Entry& entry,
                                      const Manifest::Part& part);

 private:
  const SafetensorsFile& open(size_t shard);

  fs::path folder_;
  const Manifest& manifest_;
  std::map<size_t, SafetensorsFile> open_;
};

}  // namespace witan
