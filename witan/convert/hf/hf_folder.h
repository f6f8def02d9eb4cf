// The untrusted weights of a Hugging Face folder: one model.safetensors, or several shards and the index that lists
// them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/checkpoint/safetensors.h"

namespace witan {

inline constexpr const char* kHfConfig = "config.json";
inline constexpr const char* kHfWeights = "model.safetensors";
inline constexpr const char* kHfIndex = "model.safetensors.index.json";

// Whether this is a folder with a model's config.json.
bool is_hf_folder(const fs::path& folder);
// Whether this is a folder of PEFT's with adapters only, which HfFolder refuses.
bool is_adapter_folder(const fs::path& folder);

// Returns "; to fetch it: ..." for a name as on the Hugging Face hub, OWNER/NAME; empty for other text and for a path
// that exists.
std::string way_to_fetch(const std::string& name);

class HfFolder {
 public:
  // Opens and maps every shard. Throws CheckpointError naming the fault, the file and the way out: no weights (pickles
  // are refused, as reading them runs the code that they hold), a damaged index, a missing or damaged shard, a tensor
  // that is in two shards, in none, or not in the one that the index names.
  explicit HfFolder(fs::path folder);

  const fs::path& path() const { return folder_; }
  // Sorted by name.
  const std::map<std::string, PlacedTensor>& tensors() const { return tensors_; }
  const PlacedTensor* find(const std::string& name) const;
  std::string shard_of(const std::string& name) const { return shards_.at(name); }
  // Names of the regular files beside the weights, such as the tokenizer's, sorted and without weights in other
  // formats.
  std::vector<std::string> companions() const;

 private:
  void open_shard(const std::string& name);
  void open_indexed();

  fs::path folder_;
  std::vector<MappedFile> files_;
  std::map<std::string, PlacedTensor> tensors_;
  std::map<std::string, std::string> shards_;  // by tensor
};

}  // namespace witan
