// runs/NAME: the one place a run writes to, and its lock, .lock, which the process that trains the run holds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "witan/base/files/file.h"

namespace witan {

// Held until it is destroyed. The file stays.
class RunLock {
 public:
  // Creates the file where it is missing. Nothing while another process holds it. Throws IoError.
  static std::optional<RunLock> take(const fs::path& run_folder);
  ~RunLock();
  RunLock(RunLock&& other) noexcept;
  RunLock& operator=(RunLock&& other) noexcept;

  void remove_file(const fs::path& run_folder) const;  // of a run that leaves nothing behind

 private:
  explicit RunLock(int fd) : fd_(fd) {}
  int fd_ = -1;
};

class RunFolder {
 public:
  enum class Access : uint8_t {
    own,    // this process is the one that writes there
    share,  // another process of the same run is: nothing is created, locked or removed
    stage,  // as own, in a hidden folder beside the run's, until replace() makes it the run's
  };
  // Creates the folder where it is missing, locks it (one process trains a run at a time), and removes what killed
  // processes left half written. Throws IoError, or ConfigError when another process holds the lock or check_new_name()
  // throws it.
  RunFolder(const fs::path& runs_folder, const std::string& name, Access access = Access::own);
  // Leaves no folder behind in which nothing was written.
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  // Moves `old`, the run whose place this staged folder is to take, out of the way, to NAME.1, NAME.2 …, and this
  // folder to its place. Both stay locked. Returns where the old run went. Throws IoError, when both are where they
  // were.
  fs::path replace(RunFolder& old);

  bool empty() const;  // but for the lock
  const fs::path& path() const { return path_; }
  const fs::path& place() const { return place_; }  // path(), or of a staged folder what that will be
  fs::path config() const { return path_ / "config.toml"; }
  fs::path metrics() const { return path_ / "metrics.jsonl"; }
  fs::path samples() const { return path_ / "samples.jsonl"; }
  fs::path log() const { return path_ / "train.log"; }
  fs::path progress() const { return path_ / "progress.txt"; }
  fs::path tensorboard() const { return path_ / "tensorboard"; }
  fs::path report() const { return path_ / "report.html"; }
  fs::path tokenizer() const { return path_ / "tokenizer.json"; }
  fs::path tokens() const { return path_ / "data" / "tokens"; }  // prefix of the shards
  fs::path checkpoints() const { return path_ / "checkpoints"; }
  fs::path anomalies() const { return path_ / "anomalies"; }   // checkpoints of weights and batches
  fs::path rewinds() const { return path_ / "rewinds.json"; }  // those since the checkpoints were saved
  fs::path trace() const { return path_ / "trace.json"; }
  fs::path traces() const { return path_ / "trace"; }   // a file of each rank
  fs::path memory() const { return path_ / "memory"; }  // likewise, of memory that ran out
  fs::path debug_rank(int rank) const { return path_ / ("debug-rank-" + std::to_string(rank)); }

 private:
  void move_to(const fs::path& path);

  fs::path place_, path_;
  std::optional<RunLock> lock_;
};

// Throws ConfigError where a new run would have a name that stands for a checkpoint of another one, as "mine@best".
// Runs of such names that are there stay usable.
void check_new_name(const fs::path& runs_folder, const std::string& name);

// Where RunFolder::replace() would move a run: the first of NAME.1, NAME.2 … that is free.
fs::path archive_path(const fs::path& runs_folder, const std::string& name);

// The run whose configuration was written last, or "" when there is none.
std::string latest_run(const fs::path& runs_folder);

// How the flags of a command name the run in `folder`, for a shell: "NAME", and "--runs-folder FOLDER" behind it where
// that is not the default.
std::string flags_of_run(const fs::path& folder);

// Whether a process holds the lock: this one or another, on this host or another where the file system carries locks.
// Nothing is created or changed. False for a folder without a lock, or one that cannot be read.
bool is_training(const fs::path& run_folder);

}  // namespace witan
