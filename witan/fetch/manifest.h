// The record of files fetched to a folder, .witan-fetch/manifest.jsonl: a line of JSON for the repository and one per
// file, appended once the file is complete and verified. The last line for a path counts.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "witan/base/files/growing_file.h"
#include "witan/base/threads/mutex.h"
#include "witan/fetch/hub.h"

namespace witan::fetch {

struct FetchedFile {
  HubFile file;
  std::string commit;    // of the repository at the time
  int64_t modified = 0;  // modification time after the download, in ns since 1970
};

// Thread-safe. Throws UsageError if the folder has files of another repository, CorruptionError for a malformed line,
// and IoError.
class Manifest {
 public:
  // Opens the manifest of `folder`, or creates it.
  Manifest(const fs::path& folder, const Repository& repository);

  std::optional<FetchedFile> find(const std::string& path) const;
  std::vector<std::string> paths() const;  // of all recorded files
  void add(const FetchedFile& fetched);

 private:
  void read(const Repository& repository, const fs::path& folder) WITAN_REQUIRES(mutex_);

  mutable Mutex mutex_;
  AppendFile file_ WITAN_GUARDED_BY(mutex_);
  std::map<std::string, FetchedFile> fetched_ WITAN_GUARDED_BY(mutex_);
};

// The modification time of an existing file, in ns since 1970. Throws IoError.
int64_t modified_time(const fs::path& path);

}  // namespace witan::fetch
