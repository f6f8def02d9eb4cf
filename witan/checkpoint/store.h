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
  std::vector<StateTensor> tensors;                        // this rank's tensors; a name may have several parts
  Json scalars = Json::object();                           // finite numbers, strings …; rank 0's are saved
  std::vector<std::pair<std::string, std::string>> files;  // small files: name, bytes; rank 0's are saved
  std::vector<fs::path> records = {};  // rank 0's: files elsewhere that must be on disk before the checkpoint is
};

// Collective. Returns FOLDER/step-N; an existing one is replaced. The same state gives the same bytes. If any rank
// fails, all ranks throw its error and no files remain.
fs::path save_checkpoint(Group& world, Stream& stream, const fs::path& folder, const CheckpointContent& content);

struct Checkpoint {
  fs::path folder;
  int64_t step = 0;
  Json scalars;
  Manifest manifest;
};

// Checkpoints of at most this size are fully hashed before they are used.
inline constexpr uint64_t kCheapBytes = uint64_t{8} << 30;

// Opens FOLDER/step-N. Throws CheckpointError if its manifest is damaged, or a file is missing or has another size.
Checkpoint open_checkpoint(const fs::path& step_folder);
// Reads every file and compares its hash. Throws CheckpointError naming the damaged one.
void verify_checkpoint(const Checkpoint& checkpoint);
// Does the same unless the files have more than kCheapBytes in total.
void verify_if_cheap(const Checkpoint& checkpoint);
bool has_extra_file(const Checkpoint& checkpoint, const std::string& name);
// Returns a small file after verifying it. Throws CheckpointError.
std::string read_extra_file(const Checkpoint& checkpoint, const std::string& name);

// Whether the checkpoint may hold tensors that no rank asks for: `allow` is for loading weights alone. Buffers always
// must be asked for, because what a model computes depends on them.
enum class Extra : bool { refuse, allow };

// Fills this rank's tensors in order, after verifying the shards that they come from: after an error they are
// unchanged. Throws CheckpointError for a tensor that is missing, has another shape or dtype, or is not asked for.
// Buffers that the checkpoint lacks stay unchanged; returns their names, in order.
std::vector<std::string> load_tensors(const Checkpoint& checkpoint, const std::vector<StateTensor>& into,
                                      Extra extra = Extra::refuse);
// The collective form: a tensor counts as not asked for if no rank asks for it, all ranks throw any rank's error, and
// rank 0 gets all ranks' missing buffers (the others none).
std::vector<std::string> load_tensors(Group& world, Stream& stream, const Checkpoint& checkpoint,
                                      const std::vector<StateTensor>& into, Extra extra = Extra::refuse);

// The newest intact step-N in `folder`, or nullopt. Hashes are compared too if its files have at most kCheapBytes in
// total. Adds a sentence to `warnings` for every damaged checkpoint that is skipped.
std::optional<Checkpoint> latest_checkpoint(const fs::path& folder, std::vector<std::string>& warnings);

// The checkpoints to keep: the `last` newest and, of all, the `best` with the lowest finite value of scalar `by`; of
// equal ones the newer.
struct Retention {
  Retention(int64_t newest, int64_t lowest = 0, std::string scalar = {})  // NOLINT: a number of them alone is one
      : last(newest), best(lowest), by(std::move(scalar)) {}
  int64_t last, best;
  std::string by;
};

// Deletes all checkpoints except the intact ones to keep, and damaged ones newer than the oldest of the `last` newest;
// returns the deleted ones. Deletes nothing unless the newest one is intact, hashes included. Throws ConfigError if
// keep.last < 1. Called by one rank.
std::vector<fs::path> keep_last(const fs::path& folder, const Retention& keep);

// Collective. Runs `body`, which must not communicate, on every rank. If it throws on any rank, every rank throws the
// error of the first such rank, with its exit code, its message and " (rank R)", so that no rank waits for one that has
// failed. An IoError becomes a CheckpointError.
void run_collectively(Group& group, Stream& stream, const std::function<void()>& body);

// For a DeadlineScope around the ranks' parts of a checkpoint, which one rank's disk may slow down much more than the
// others'. `doing` describes the work for the error: "save step 4 to FOLDER".
CallDeadline checkpoint_deadline(double seconds, const std::string& doing);

inline constexpr const char* kWayOut = "restore the file from a copy, or resume from another checkpoint";

// Returns the pages within these bytes of a mapped file to the kernel; touching them reads them again. So a checkpoint
// is streamed through memory and is never resident beside the run.
void release_pages(std::span<const std::byte> mapped);

// Opens a file after comparing its hash. Throws CheckpointError, naming the file, if it cannot be read, or if its size
// or hash differs from the manifest's.
MappedFile open_verified(const fs::path& folder, const Manifest::File& file);

// The shards of a checkpoint, each opened and verified when first used.
class Shards {
 public:
  // The manifest must outlive this.
  Shards(fs::path folder, const Manifest& manifest) : folder_(std::move(folder)), manifest_(manifest) {}

  // The bytes of a part in the order of its region. Throws CheckpointError as open_verified() does, and if the shard
  // does not contain the part.
  std::span<const std::byte> bytes_of(const std::string& name, const Manifest::Entry& entry,
                                      const Manifest::Part& part);

 private:
  const SafetensorsFile& open(size_t shard);

  fs::path folder_;
  const Manifest& manifest_;
  std::map<size_t, SafetensorsFile> open_;
};

}  // namespace witan
