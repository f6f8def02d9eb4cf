// Fetches files over several connections at once, in segments, so that a single large file is fast too.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "witan/fetch/hub.h"

namespace witan::fetch {

struct DownloadOptions {
  int connections = 8;
  uint64_t segment_bytes = uint64_t{64} << 20;  // of one request
  uint64_t record_bytes = uint64_t{1} << 20;    // a process that is killed loses at most this of each connection
};

// Called from any thread; what they throw ends the download.
struct DownloadHooks {
  std::function<void(uint64_t bytes)> received;       // so many more bytes have come
  std::function<void(const HubFile& file)> finished;  // the file has its name, and is verified
  std::function<void(const std::string& text)> note;  // a request is made again
};

struct DownloadJob {
  HubOptions hub;
  Repository repository;
  std::string commit;
  fs::path folder;  // the files go to, each below it as its path says
  fs::path parts;   // where parts of files are kept
};

// The name of a file among the parts: of its content and its path, so that a part never continues another content.
std::string part_name(const HubFile& file);

// Fetches all files, or throws the first error after every connection has stopped: DataError for what the hub does not
// give, wrong sizes and wrong hashes; IoError; DiskFullError. What was fetched by then stays, and is not fetched again.
void download(const DownloadJob& job, const std::vector<HubFile>& files, const DownloadOptions& options,
              const DownloadHooks& hooks);

}  // namespace witan::fetch
