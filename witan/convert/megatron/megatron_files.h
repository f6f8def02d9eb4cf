// The files of a checkpoint of Megatron-LM, and what the pickles in them say by name.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "witan/base/files/file.h"
#include "witan/convert/megatron/megatron_torch_file.h"

namespace witan {

inline constexpr const char* kMegatronTracker = "latest_checkpointed_iteration.txt";
inline constexpr const char* kMegatronDistMetadata = ".metadata";       // of torch.distributed.checkpoint
inline constexpr const char* kMegatronCommon = "common.pt";             // beside it
inline constexpr const char* kMegatronRankFile = "model_optim_rng.pt";  // of each rank of a legacy checkpoint

// Each is opened once.
class MegatronFiles {
 public:
  explicit MegatronFiles(fs::path folder) : folder_(std::move(folder)) {}

  const fs::path& folder() const { return folder_; }
  fs::path path_of(const std::string& name) const { return folder_ / name; }
  bool has(const std::string& name) const;
  // Throw CheckpointError for a file that is missing or damaged.
  const MappedFile& map(const std::string& name);
  const TorchFile& torch(const std::string& name);  // one of torch.save()

 private:
  fs::path folder_;
  std::map<std::string, MappedFile> mapped_;
  std::map<std::string, TorchFile> torch_;
};

using PickleMembers = std::map<std::string_view, const PickleValue*>;

// The attributes of an object of the class `name`, that were given to what makes it or set later. Throws
// CheckpointError("WHERE: …") for another value.
PickleMembers pickled_attributes(const PickleValue* value, std::string_view name, const std::string& where);
// One of them. Throws CheckpointError("WHERE …") where there is none.
const PickleValue& pickled_attribute(const PickleMembers& members, std::string_view key, const std::string& where);
// The arguments of the program that wrote a checkpoint, by name. Throws CheckpointError where `args` is null.
PickleMembers megatron_arguments(const PickleValue* args, const std::string& where);

}  // namespace witan
