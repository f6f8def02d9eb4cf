// The folder of a command's unfinished work, from which the same command continues after a kill: its arguments, a
// journal of what is done, and temporary files.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/base/files/growing_file.h"

namespace witan {

// Creates the folder, and those above it, unless it is there. Throws IoError, also if nothing can be written in it.
void make_folder(const fs::path& path);

// One process at a time has it. Not thread-safe.
class WorkFolder {
 public:
  // Creates the folder, or continues the work of an earlier process with the same `key`; work with another
  // key is removed. Throws DataError if another process is at work there; CorruptionError for a journal that is
  // damaged; IoError.
  WorkFolder(fs::path path, const nlohmann::json& key);
  ~WorkFolder();
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;

  fs::path operator/(const std::string& name) const { return path_ / name; }
  const fs::path& path() const { return path_; }
  // The entries of earlier processes, in order, followed by those of this one.
  const std::vector<nlohmann::json>& journal() const { return journal_; }  // objects
  // Appends an entry, which is on the disk when this returns.
  void record(nlohmann::json entry);
  // The work is done. Call last.
  void remove();
  // Throws the CorruptionError of a journal that contradicts itself, with the way out.
  [[noreturn]] static void throw_damaged(const fs::path& folder, const std::string& what);

 private:
  explicit WorkFolder(fs::path path);  // locked: what is thrown later unlocks it
  void lock();
  void read_journal();

  fs::path path_;
  int lock_ = -1;
  std::vector<nlohmann::json> journal_;
  std::unique_ptr<GrowingFile> file_;
};

// Throws DiskFullError unless the disk of `folder` has room for `bytes` of `what`, counting what the folder itself
// holds already: an earlier part of the same work.
void require_room(const fs::path& folder, uint64_t bytes, const std::string& what, const std::string& way_out = "");

bool on_one_disk(const fs::path& a, const fs::path& b);

}  // namespace witan
