#include "witan/convert/hf/hf_folder.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/checkpoint/json_fields.h"

namespace witan {
namespace {

constexpr uint64_t kMostIndexBytes = 256 << 20;
constexpr int kIndexDepth = 8;

bool ends_with_any(const std::string& name, std::initializer_list<std::string_view> endings) {
  return std::ranges::any_of(endings, [&](std::string_view ending) { return name.ends_with(ending); });
}

bool is_pickle(const std::string& name) {
  return ends_with_any(name, {".bin", ".pt", ".pth", ".pkl", ".ckpt"});
}

bool is_weights(const std::string& name) {
  return is_pickle(name) || name == kHfIndex ||
         ends_with_any(name, {".safetensors", ".gguf", ".h5", ".msgpack", ".onnx", ".ot", ".index.json"});
}

[[noreturn]] void refuse_no_weights(const fs::path& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (const std::string name = entry.path().filename().string(); is_pickle(name))
      throw CheckpointError(cat(folder.string(), ": the weights are in ", name,
                                ", a pickle, which runs code when it is read: Witan refuses it. Convert it where you "
                                "trust it: AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(OUT) of "
                                "Python's transformers writes safetensors"));
  for (const auto& entry : fs::directory_iterator(folder, error))
    require<CheckpointError>(!entry.path().string().ends_with(".safetensors"), folder.string(), " holds ",
                             entry.path().filename().string(), ", but no ", kHfIndex,
                             ", which says what is in each file: download it into the folder");
  throw CheckpointError(cat(folder.string(), " has neither ", kHfWeights, " nor ", kHfIndex,
                            ": download the model's safetensors files into it"));
}

// Whether the name is that of a file within the folder.
bool is_plain(const std::string& name) {
  return !name.empty() && name.front() != '.' && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

}  // namespace

bool is_hf_folder(const fs::path& folder) {
  std::error_code error;
  return fs::is_regular_file(folder / kHfConfig, error);
}

bool is_adapter_folder(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / "adapter_config.json", error) && !is_hf_folder(folder);
}

std::string way_to_fetch(const std::string& name) {
  const auto is_word = [](std::string_view word) {
    return !word.empty() && word[0] != '.' && std::ranges::all_of(word, [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
    });
  };
  const size_t slash = name.find('/');
  std::error_code error;
  if (slash == std::string::npos || fs::exists(name, error)) return "";
  if (!is_word(std::string_view(name).substr(0, slash)) || !is_word(std::string_view(name).substr(slash + 1)))
    return "";
  return cat("; of a model of the Hugging Face hub, to fetch it: `witan data fetch --model ", name,
             "`, then give models/", name.substr(slash + 1));
}

HfFolder::HfFolder(fs::path folder) : folder_(std::move(folder)) {
  std::error_code error;
  require<CheckpointError>(fs::exists(folder_, error), folder_.string(),
                           " does not exist: give the folder of a model, ",
                           "with config.json and safetensors files, or a .gguf file", way_to_fetch(folder_.string()));
  require<CheckpointError>(fs::is_directory(folder_, error), folder_.string(),
                           " is not a folder and does not begin as a ",
                           "GGUF file does: give the folder of a model, with config.json and safetensors files, or an "
                           "intact .gguf file");
  require<CheckpointError>(
      !is_adapter_folder(folder_), folder_.string(),
      " holds adapters alone (adapter_config.json), no model: start a run from them with `witan train "
      "--init-from`, or give their base model");
  if (fs::exists(folder_ / kHfIndex, error))
    open_indexed();
  else if (fs::exists(folder_ / kHfWeights, error))
    open_shard(kHfWeights);
  else
    refuse_no_weights(folder_);
}

void HfFolder::open_shard(const std::string& name) {
  const fs::path path = folder_ / name;
  std::error_code error;
  require<CheckpointError>(fs::is_regular_file(path, error), path.string(), " is missing, which ", kHfIndex,
                           " lists: download it, or copy the folder again");
  files_.emplace_back(path);
  std::map<std::string, std::string> metadata;
  for (PlacedTensor& tensor : parse_safetensors(files_.back().bytes(), path.string(), stored_element_bytes, metadata)) {
    const auto known = shards_.emplace(tensor.info.name, name);
    require<CheckpointError>(known.second, folder_.string(), ": the tensor \"", clipped(tensor.info.name),
                             "\" is in two files, ", known.first->second, " and ", name,
                             ": keep the files of one download");
    tensors_.emplace(tensor.info.name, std::move(tensor));
  }
}

void HfFolder::open_indexed() {
  const fs::path path = folder_ / kHfIndex;
  Json index;
  try {
    index = parse_json(read_file(path, kMostIndexBytes), path.string(), kIndexDepth);
  } catch (const CorruptionError& damaged) {
    throw CheckpointError(cat(damaged.what(), "; download this file again"));
  }
  require<CheckpointError>(index.is_object(), path.string(), ": an object is expected, found ", index.type_name());
  const Json& map = object_member(index, "weight_map", path.string());
  std::set<std::string> names;
  for (const auto& [tensor, file] : map.items()) {
    require<CheckpointError>(file.is_string() && is_plain(file.get<std::string>()) && !is_pickle(file), path.string(),
                             ": \"", clipped(tensor), "\" is said to be in ", clipped(file.dump()),
                             ", which is no safetensors file of this folder");
    names.insert(file.get<std::string>());
  }
  require<CheckpointError>(!names.empty(), path.string(), ": \"weight_map\" lists no tensors");
  for (const std::string& name : names) open_shard(name);
  for (const auto& [tensor, file] : map.items()) {
    const auto found = shards_.find(tensor);
    require<CheckpointError>(found != shards_.end(), path.string(), " says that \"", clipped(tensor), "\" is in ",
                             clipped(file.get<std::string>()), ", which has no such tensor: download both again");
    require<CheckpointError>(found->second == file.get_ref<const std::string&>(), path.string(), " says that \"",
                             clipped(tensor), "\" is in ", clipped(file.get<std::string>()), ", but it is in ",
                             found->second, ": download the index again");
  }
  for (const auto& [tensor, file] : shards_)
    require<CheckpointError>(map.contains(tensor), path.string(), " does not list \"", clipped(tensor),
                             "\", which is in ", file, ": download the index again");
}

const PlacedTensor* HfFolder::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

std::vector<std::string> HfFolder::companions() const {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file(error) && name.front() != '.' && !is_weights(name)) names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace witan
