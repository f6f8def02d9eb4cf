// A checkpoint of Megatron-LM: "torch_dist" (.metadata and *.distcp) or the legacy mp_rank_XX/model_optim_rng.pt, as
// tensors by one set of names, whatever layout wrote them. All of it is untrusted, and nothing of it is run.
#pragma once

#include <map>
#include <string>

#include "witan/base/files/file.h"
#include "witan/convert/megatron/megatron_files.h"
#include "witan/convert/megatron/megatron_tensors.h"

namespace witan {

// Whether this is the folder of such a checkpoint, or one that holds checkpoints of several iterations.
bool is_megatron_folder(const fs::path& folder);

class MegatronFolder {
 public:
  // Takes the latest iteration where there are several. Throws CheckpointError, which says what is wrong, where, and
  // what to do.
  explicit MegatronFolder(const fs::path& folder);

  const fs::path& path() const { return files_.folder(); }
  const std::map<std::string, MegatronTensor>& tensors() const { return contents_.tensors.all(); }
  // What the checkpoint holds beside weights, by name, and what it is.
  const std::map<std::string, std::string>& others() const { return contents_.others; }
  // The arguments of the program that wrote it, by name. Throws CheckpointError where it has none.
  PickleMembers arguments() const;

 private:
  MegatronFiles files_;
  MegatronContents contents_;
};

}  // namespace witan
