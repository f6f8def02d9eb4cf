// Downloads files over several connections at once, in segments, so that a single large file is fast as well.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "witan/fetch/hub.h"

namespace witan::fetch {

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
