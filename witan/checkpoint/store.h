// Checkpoints (save.cpp, load.cpp, store.cpp): FOLDER/step-N/{manifest.json, shard-R.safetensors, small files},
// complete or absent.
//
// A save writes FOLDER/.tmp-step-N.ID and flushes every file to disk, the manifest last; then the folder is renamed and
// FOLDER flushed. A checkpoint holds global tensors: it can be loaded under any layout and by any number of ranks. Only
// one run at a time writes to a FOLDER (it holds a lock): hidden folders found there are leftovers of killed runs.
//
// Errors: CheckpointError (exit code 5) names the file and the fix; DiskFullError if there is too little space.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/base/json.h"
#include "witan/checkpoint/manifest.h"
#include "witan/checkpoint/safetensors.h"
#include "witan/checkpoint/state.h"
#include "witan/comm/deadline.h"
#include "witan/comm/group.h"

namespace witan {

// Throws ShapeError unless the tensor satisfies the comments of its members.
void check_state(const StateTensor& state);

struct CheckpointContent {
  int64_t step = 0;
  std::vector<StateTensor> tensors;                        // this rank's; a name may have several parts
  Json scalars = Json::object();                           // rank 0 saves its own: finite numbers, strings …
  std::vector<std::pair<std::string, std::string>> files;  // small ones: name, bytes; rank 0 saves its own
  std::vector<fs::path> records = {};  // rank 0's own: files elsewhere that must be durable before the checkpoint is
};

// Collective. Returns FOLDER/step-N; an existing one is replaced. The same state gives the same bytes. If any rank
// fails, all ranks throw its error and no files are left behind.
fs::path save_checkpoint(Group& world, Stream& stream, const fs::path& folder, const CheckpointContent& content);

struct Checkpoint {
  fs::path folder;
  int64_t step = 0;
  Json scalars;
  Manifest manifest;
};

// Files of so many bytes in total are read and hashed before anything is begun with them.
inline constexpr uint64_t kCheapBytes = uint64_t{8} << 30;

// Opens FOLDER/step-N. Throws CheckpointError if its manifest is damaged, or a file is missing or has another size.
Checkpoint open_checkpoint(const fs::path& step_folder);
// Reads every file and compares its hash. Throws CheckpointError naming the damaged one.
void verify_checkpoint(const Checkpoint& checkpoint);
// The same, unless its files have more than kCheapBytes in total.
void verify_if_cheap(const Checkpoint& checkpoint);
bool has_extra_file(const Checkpoint& checkpoint, const std::string& name);
// A small file, verified. Throws CheckpointError.
std::string read_extra_file(const Checkpoint& checkpoint, const std::string& name);

// Whether the checkpoint may hold tensors that nobody asks for: weights alone are loaded with `allow`. Buffers are no
// extra: what a model computes depends on them.
enum class Extra : bool { refuse, allow };

// Fills this rank's tensors in their order, after the shards they come from are verified: after an error they are as
// before. Throws CheckpointError for a tensor that is missing, of another shape or dtype, or left over. Buffers that
// the checkpoint lacks stay as they are; their names are returned, in order.
std::vector<std::string> load_tensors(const Checkpoint& checkpoint, const std::vector<StateTensor>& into,
                                      Extra extra = Extra::refuse);
// The same, collective: a tensor is left over when no rank asks for it, all ranks throw the error of any, and rank 0 is
// told all ranks' missing buffers (others: nothing).
std::vector<std::string> load_tensors(Group& world, Stream& stream, const Checkpoint& checkpoint,
                                      const std::vector<StateTensor>& into, Extra extra = Extra::refuse);

// The newest intact step-N in `folder`, or nothing. Hashes are compared too if its files have at most kCheapBytes in
// total. Adds a sentence to `warnings` for every damaged checkpoint that is skipped.
std::optional<Checkpoint> latest_checkpoint(const fs::path& folder, std::vector<std::string>& warnings);

// Which checkpoints are kept: the `last` newest, and of all the `best` whose scalar `by` is lowest, if it is a finite
// number; of equal ones the newer.
struct Retention {
  Retention(int64_t newest, int64_t lowest = 0, std::string scalar = {})  // NOLINT: a number of them alone is one
      : last(newest), best(lowest), by(std::move(scalar)) {}
  int64_t last, best;
  std::string by;
};

// Deletes all but the intact checkpoints that are kept, and damaged ones older than the last of the newest; returns the
// deleted ones. Deletes nothing unless the newest one is intact, hashes included. Throws ConfigError if keep.last < 1.
// Called by one rank.
std::vector<fs::path> keep_last(const fs::path& folder, const Retention& keep);

// Runs `body`, which must not communicate, on every rank. If it throws on any rank, every rank throws the error of the
// first such rank: with its exit code, its message and " (rank R)". An IoError becomes a CheckpointError.
void run_collectively(Group& group, Stream& stream, const std::function<void()>& body);

// For a DeadlineScope around ranks' parts of a checkpoint, which may take one rank's disk much longer than the others'.
// `doing` is what they do, for the error: "save step 4 to FOLDER".
CallDeadline checkpoint_deadline(double seconds, const std::string& doing);

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
