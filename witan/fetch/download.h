// Downloads files over several connections at once, in segments, so that a single large file is fast as well.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/base/files/growing_file.h"
#include "witan/base/threads/mutex.h"
#include "witan/fetch/http.h"
#include "witan/fetch/hub.h"

namespace witan::fetch {

// An incomplete file. NAME.part has the final size, with every byte at its final offset, and NAME.ranges records which
// bytes are there: a line "BEGIN END" per range, appended after its bytes are written. A killed process loses only what
// it had not recorded. Whether the bytes are correct is checked by digest, which also detects bytes that a power
// failure left unwritten.
//
// Thread-safe: ranges are written and recorded by any thread. Throws IoError, or DiskFullError if the disk is full.
class PartFile {
 public:
  // Opens NAME.part in `folder`, or creates it. Discards the part of a file of another size.
  PartFile(const fs::path& folder, const std::string& name, uint64_t size);
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;

  // Ranges not fetched yet, in order.
  std::vector<ByteRange> missing() const;
  void write(uint64_t offset, std::string_view bytes) const;
  void record(ByteRange range);
  // Forgets everything: the bytes were wrong.
  void clear();
  // Gives the whole file its name, durably.
  void finish(const fs::path& target);

  const fs::path& path() const { return path_; }

  // The bytes of it that are there, without opening it for writing.
  static uint64_t bytes_there(const fs::path& folder, const std::string& name, uint64_t size);

 private:
  fs::path path_, journal_path_;
  uint64_t size_;
  Descriptor file_;
  mutable Mutex mutex_;
  std::optional<AppendFile> journal_ WITAN_GUARDED_BY(mutex_);
  std::vector<ByteRange> done_ WITAN_GUARDED_BY(mutex_);  // apart from each other, in order
};

// Creates a folder and those above it, where they are missing. Throws IoError.
void create_folders(const fs::path& folder);

struct DownloadOptions {
  int connections = 8;
  uint64_t segment_bytes = uint64_t{64} << 20;  // per request
  uint64_t record_bytes = uint64_t{1} << 20;    // a killed process loses at most this much per connection
};

// May be called from any thread; an exception ends the download.
struct DownloadHooks {
  std::function<void(uint64_t bytes)> received;       // this many more bytes were received
  std::function<void(const HubFile& file)> finished;  // the file is verified and has its final name
  std::function<void(const std::string& text)> note;  // a request is retried
};

struct DownloadJob {
  HubOptions hub;
  Repository repository;
  std::string commit;
  fs::path folder;  // destination of the files, each below it at its path
  fs::path parts;   // holds incomplete files
};

// The name of a file's incomplete part. It derives from digest and path, so that other content is never continued.
std::string part_name(const HubFile& file);

// Downloads all files, or throws the first error after every connection has stopped: DataError for refusals of the hub,
// wrong sizes and wrong hashes; IoError; DiskFullError. Whatever was downloaded by then is kept and not downloaded
// again.
void download(const DownloadJob& job, const std::vector<HubFile>& files, const DownloadOptions& options,
              const DownloadHooks& hooks);

}  // namespace witan::fetch
