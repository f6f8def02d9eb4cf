// runs/NAME, the only folder a run writes to, and its lock file, .lock, which the process that trains the run holds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "witan/base/files/file.h"

namespace witan {

// Holds the lock until it is destroyed. The file stays.
class RunLock {
 public:
  // Creates the file if it is missing. Returns nothing if another process holds the lock. Throws IoError.
  static std::optional<RunLock> take(const fs::path& run_folder);
  ~RunLock();
  RunLock(RunLock&& other) noexcept;
  RunLock& operator=(RunLock&& other) noexcept;

  void remove_file(const fs::path& run_folder) const;  // if the run has written nothing

 private:
  explicit RunLock(int fd) : fd_(fd) {}
  int fd_ = -1;
};

class RunFolder {
 public:
  enum class Access : uint8_t {
    own,    // this process writes to the folder
    share,  // another process of the same run does: nothing is created, locked or removed
    stage,  // as own, but in a hidden folder beside the run's, which replace() moves there
  };
  // Creates the folder if it is missing, locks it (one process trains a run at a time), and removes partial files of
  // killed processes. Throws IoError, ConfigError if another process holds the lock, and what check_new_name() throws.
  RunFolder(const fs::path& runs_folder, const std::string& name, Access access = Access::own);
  // Removes the folder if nothing was written to it.
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  // Archives `old`, the run that this staged folder replaces, as NAME.1, NAME.2 …, and moves this folder to its place.
  // Both stay locked. Returns the path of the archive. Throws IoError, and then neither has moved.
  fs::path replace(RunFolder& old);

  bool empty() const;  // apart from the lock
  const fs::path& path() const { return path_; }
  const fs::path& place() const { return place_; }  // path(), or of a staged folder its path after replace()
  fs::path config() const { return path_ / "config.toml"; }
  fs::path metrics() const { return path_ / "metrics.jsonl"; }
  fs::path rollouts() const { return path_ / "rollouts"; }  // a file of each step
  fs::path samples() const { return path_ / "samples.jsonl"; }
  fs::path log() const { return path_ / "train.log"; }
  fs::path progress() const { return path_ / "progress.txt"; }
  fs::path tensorboard() const { return path_ / "tensorboard"; }
  fs::path report() const { return path_ / "report.html"; }
  fs::path tokenizer() const { return path_ / "tokenizer.json"; }
  fs::path tokens() const { return path_ / "data" / "tokens"; }  // prefix of the shards
  fs::path checkpoints() const { return path_ / "checkpoints"; }
  fs::path reference() const { return path_ / "reference"; }   // a checkpoint of a frozen reference
  fs::path anomalies() const { return path_ / "anomalies"; }   // checkpoints of weights and batches
  fs::path rewinds() const { return path_ / "rewinds.json"; }  // see state/rewinds.h
  fs::path trace() const { return path_ / "trace.json"; }
  fs::path traces() const { return path_ / "trace"; }   // a file of each rank
  fs::path memory() const { return path_ / "memory"; }  // likewise, of memory (record/memory.h)
  fs::path debug_rank(int rank) const { return path_ / ("debug-rank-" + std::to_string(rank)); }

 private:
  void move_to(const fs::path& path);

  fs::path place_, path_;
  std::optional<RunLock> lock_;
};

// Throws ConfigError if the name of a new run has a slash, begins with a dot, or could be another run's checkpoint,
// such as "mine@best". Existing runs with such names stay usable.
void check_new_name(const fs::path& runs_folder, const std::string& name);

// The path to which RunFolder::replace() archives a run: the first of NAME.1, NAME.2 … that is free.
fs::path archive_path(const fs::path& runs_folder, const std::string& name);

// The run whose configuration was written last; "" if there is none.
std::string latest_run(const fs::path& runs_folder);

// The command-line arguments that name the run in `folder`, for a shell: "NAME", followed by "--runs-folder FOLDER" if
// that is not the default.
std::string flags_of_run(const fs::path& folder);

// Whether a process on this host, or on another one if the file system supports locks, holds the lock. Creates nothing.
// False for a folder without a lock, or one that cannot be read.
bool is_training(const fs::path& run_folder);

}  // namespace witan
