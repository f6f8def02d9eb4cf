#include <algorithm>
#include <vector>

#include "witan/base/error.h"
#include "witan/convert/megatron/megatron_folder.h"

namespace witan {
namespace {

// The fields of the classes that torch.distributed.checkpoint describes a checkpoint with, in order.
std::vector<std::string_view> arguments_of(std::string_view name) {
  if (name == "Metadata") return {"state_dict_metadata", "planner_data", "storage_data"};
  if (name == "MetadataIndex") return {"fqn", "offset", "index"};
  if (name == "_StorageInfo") return {"relative_path", "offset", "length"};
  if (name == "TensorStorageMetadata") return {"properties", "size", "chunks"};
  if (name == "ChunkStorageMetadata") return {"offsets", "sizes"};
  return {};
}

}  // namespace

bool MegatronFiles::has(const std::string& name) const {
  std::error_code none;
  return fs::is_regular_file(path_of(name), none);
}

const MappedFile& MegatronFiles::map(const std::string& name) {
  if (const auto known = mapped_.find(name); known != mapped_.end()) return known->second;
  const fs::path path = path_of(name);
  require<CheckpointError>(has(name), path.string(), " is missing: copy the whole folder of the checkpoint");
  return mapped_.emplace(name, MappedFile(path)).first->second;
}

const TorchFile& MegatronFiles::torch(const std::string& name) {
  if (const auto known = torch_.find(name); known != torch_.end()) return known->second;
  return torch_.emplace(name, TorchFile(map(name).bytes(), path_of(name).string())).first->second;
}

PickleMembers pickled_attributes(const PickleValue* value, std::string_view name, const std::string& where) {
  require<CheckpointError>(
      value && value->callee() && value->callee()->is(PickleValue::Kind::global) && value->callee()->name == name,
      where, ": a ", name, " is expected: copy the checkpoint again");
  if (value->state) return value->state->members();
  PickleMembers members;
  const std::vector<std::string_view> names = arguments_of(name);
  const auto& given = value->items[1]->items;
  for (size_t i = 0; i < std::min(names.size(), given.size()); ++i) members[names[i]] = given[i];
  return members;
}

const PickleValue& pickled_attribute(const PickleMembers& members, std::string_view key, const std::string& where) {
  const auto found = members.find(key);
  require<CheckpointError>(found != members.end(), where, " has no \"", key, "\": copy the checkpoint again");
  return *found->second;
}

PickleMembers megatron_arguments(const PickleValue* args, const std::string& where) {
  require<CheckpointError>(
      args != nullptr, where,
      " does not say which model it is of: it has no \"args\", which Megatron-LM's own training writes into ",
      kMegatronCommon, " or ", kMegatronRankFile,
      ". Convert it to a Hugging Face folder instead: Megatron-Bridge's AutoBridge has export_ckpt()");
  return pickled_attributes(args, "Namespace", where);
}

}  // namespace witan
