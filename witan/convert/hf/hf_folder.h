// The weights of a Hugging Face folder: one model.safetensors, or several shards and the index that lists them. All of
// it is untrusted.
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

// Whether this is a folder with a config.json of a model.
bool is_hf_folder(const fs::path& folder);
// Whether it is one of PEFT's, with adapters and no model. HfFolder refuses it.
bool is_adapter_folder(const fs::path& folder);

// How to fetch a model that is named as on the Hugging Face hub, OWNER/NAME, "; to fetch it: ..."; empty for other text
// and for what lies there.
std::string way_to_fetch(const std::string& name);

class HfFolder {
 public:
  // Opens and maps every shard. Throws CheckpointError that names what is wrong, where and what to do: no weights
  // (those in pickle's format are refused, as reading them runs code that they hold), a damaged index, a shard that is
  // missing or damaged, a tensor that is in two shards, in none, or in another one than the index says.
  explicit HfFolder(fs::path folder);

  const fs::path& path() const { return folder_; }
  // By name.
  const std::map<std::string, PlacedTensor>& tensors() const { return tensors_; }
  const PlacedTensor* find(const std::string& name) const;
  std::string shard_of(const std::string& name) const { return shards_.at(name); }
  // Files beside the weights, such as the tokenizer's: names of regular files, sorted. Weights in other formats are not
  // among them.
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
