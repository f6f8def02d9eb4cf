// What was fetched to a folder: .witan-fetch/manifest.jsonl, a line of JSON for the repository and one for each file,
// appended when it is whole and verified. Of a path that stands there twice, the last line counts.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "witan/base/files/append_file.h"
#include "witan/base/threads/mutex.h"
#include "witan/fetch/hub.h"

namespace witan::fetch {

struct FetchedFile {
  HubFile file;
  std::string commit;    // of the repository, that it was fetched at
  int64_t modified = 0;  // its time of modification then, in ns since 1970
};

// Thread-safe. Throws UsageError where the folder has another repository's files, CorruptionError for a line that is
// none of its own, and IoError.
class Manifest {
 public:
  // Opens that of `folder`, or begins one.
  Manifest(const fs::path& folder, const Repository& repository);

  std::optional<FetchedFile> find(const std::string& path) const;
  std::vector<std::string> paths() const;  // of all files
  void add(const FetchedFile& fetched);

 private:
  void read(const Repository& repository, const fs::path& folder) WITAN_REQUIRES(mutex_);

  mutable Mutex mutex_;
  AppendFile file_ WITAN_GUARDED_BY(mutex_);
  std::map<std::string, FetchedFile> fetched_ WITAN_GUARDED_BY(mutex_);
};

// The time of modification of a file that is there, in ns since 1970. Throws IoError.
int64_t modified_time(const fs::path& path);

}  // namespace witan::fetch
