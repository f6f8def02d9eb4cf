// A checkpoint of Megatron-LM, either "torch_dist" (.metadata and *.distcp) or the legacy
// mp_rank_XX/model_optim_rng.pt, as tensors by one set of names for every layout. It is untrusted, and no code in it is
// run.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "witan/base/files/file.h"
#include "witan/convert/megatron/megatron_pickle.h"
#include "witan/convert/megatron/megatron_tensors.h"

namespace witan {

inline constexpr const char* kMegatronTracker = "latest_checkpointed_iteration.txt";
inline constexpr const char* kMegatronDistMetadata = ".metadata";       // torch.distributed.checkpoint's
inline constexpr const char* kMegatronCommon = "common.pt";             // beside it
inline constexpr const char* kMegatronRankFile = "model_optim_rng.pt";  // one for each rank of a legacy checkpoint

// The files of a checkpoint, each opened once.
class MegatronFiles {
 public:
  explicit MegatronFiles(fs::path folder) : folder_(std::move(folder)) {}

  const fs::path& folder() const { return folder_; }
  fs::path path_of(const std::string& name) const { return folder_ / name; }
  bool has(const std::string& name) const;
  // Both throw CheckpointError for a missing or damaged file.
  const MappedFile& map(const std::string& name);
  const TorchFile& torch(const std::string& name);  // a file of torch.save()

 private:
  fs::path folder_;
  std::map<std::string, MappedFile> mapped_;
  std::map<std::string, TorchFile> torch_;
};

using PickleMembers = std::map<std::string_view, const PickleValue*>;

// The attributes of an object of class `name`, whether given to its constructor or set later. Throws
// CheckpointError("WHERE: …") for another value.
PickleMembers pickled_attributes(const PickleValue* value, std::string_view name, const std::string& where);
// One of these attributes. Throws CheckpointError("WHERE …") if it is absent.
const PickleValue& pickled_attribute(const PickleMembers& members, std::string_view key, const std::string& where);
// The arguments of the program that wrote the checkpoint, by name. Throws CheckpointError if `args` is null.
PickleMembers megatron_arguments(const PickleValue* args, const std::string& where);

// Reads .metadata and *.distcp of torch.distributed.checkpoint, and common.pt. Formats:
// torch/distributed/checkpoint/metadata.py and filesystem.py. Throws CheckpointError.
void read_torch_dist(MegatronFiles& files, MegatronContents& contents);

// Reads mp_rank_XX/model_optim_rng.pt, a file of torch.save() for each rank of the layout that wrote it, by its place
// in tensor, pipeline and expert parallelism. Throws CheckpointError.
void read_legacy(MegatronFiles& files, MegatronContents& contents);

// Whether this is the folder of such a checkpoint, or of checkpoints of several iterations.
bool is_megatron_folder(const fs::path& folder);

// Whether the latest checkpoint is a release, as converters write: weights without an iteration, from which Megatron-LM
// trains as with --finetune.
bool is_megatron_release(const fs::path& folder);

class MegatronFolder {
 public:
  // Opens the latest iteration if there are several. Throws CheckpointError naming the fault, the place and the way
  // out.
  explicit MegatronFolder(const fs::path& folder);

  const fs::path& path() const { return files_.folder(); }
  const std::map<std::string, MegatronTensor>& tensors() const { return contents_.tensors.all(); }
  // A note on everything that the checkpoint holds beside weights, by name.
  const std::map<std::string, std::string>& others() const { return contents_.others; }
  // The arguments of the program that wrote it, by name. Throws CheckpointError if it has none.
  PickleMembers arguments() const;

 private:
  MegatronFiles files_;
  MegatronContents contents_;
};

}  // namespace witan
