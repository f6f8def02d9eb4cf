// Fetches files of a repository of the hub to a folder: selects them, skips those already there, downloads the rest.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "witan/fetch/download.h"
#include "witan/fetch/hub.h"

namespace witan::fetch {

struct FetchOptions {
  Repository repository;
  std::string subset;  // declared in a dataset's card; empty: no subset
  // Patterns (base/files/glob.h). Without include all files are fetched, or those of a model that Witan reads.
  std::vector<std::string> include, exclude;
  fs::path to;
  bool verify = false;  // verify existing files by hash even if they look unchanged
  HubOptions hub;
  DownloadOptions download;
};

struct Listing {
  std::string commit;
  std::vector<HubFile> files;  // the selected files, by path
  int64_t left_out = 0;        // files of a model that Witan does not read
  uint64_t left_out_bytes = 0;
};

struct FetchSummary {
  int64_t fetched = 0, there = 0;  // files
  uint64_t fetched_bytes = 0, there_bytes = 0;
};

struct FetchHooks {
  std::function<void(uint64_t bytes)> begin;     // this many bytes will be downloaded
  std::function<void(uint64_t bytes)> progress;  // this many of them have arrived; from any thread
  std::function<void(const std::string&)> note;  // from any thread
};

// Queries the hub. Throws UsageError naming the available files if none is selected; otherwise throws as Hub does.
Listing list_files(const FetchOptions& options);

// Downloads the files that the folder lacks or that differ from the hub's list. Throws before any download: UsageError
// for an existing file that was not fetched by Witan and has other content, or while another process fetches to the
// folder; DiskFullError if space is short. Otherwise throws as download() does.
FetchSummary fetch_files(const FetchOptions& options, const Listing& listing, const FetchHooks& hooks);

// A named selection of a corpus: `witan data fetch --preset NAME`.
struct FetchPreset {
  std::string name, repository, subset;
  std::vector<std::string> include;
};

const std::vector<FetchPreset>& fetch_presets();

// Throws UsageError for an unknown name.
const FetchPreset& fetch_preset(const std::string& name);

}  // namespace witan::fetch
