// Files of a repository of the hub in a folder: what is chosen, what is there already, and the rest fetched.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "witan/fetch/download.h"
#include "witan/fetch/hub.h"

namespace witan::fetch {

struct FetchOptions {
  Repository repository;
  std::string subset;  // of a dataset's card; empty: not chosen by it
  // Patterns (base/files/glob.h). Without include all files are fetched, or those of a model that Witan reads.
  std::vector<std::string> include, exclude;
  fs::path to;
  bool verify = false;  // compare what is there by its hash, though it is as it was left
  HubOptions hub;
  DownloadOptions download;
};

struct Listing {
  std::string commit;
  std::vector<HubFile> files;  // chosen, by path
  int64_t left_out = 0;        // files of a model that Witan does not read,
  uint64_t left_out_bytes = 0;
};

struct FetchSummary {
  int64_t fetched = 0, there = 0;  // files
  uint64_t fetched_bytes = 0, there_bytes = 0;
};

struct FetchHooks {
  std::function<void(uint64_t bytes)> begin;     // so many bytes will be fetched
  std::function<void(uint64_t bytes)> progress;  // so many of them are there; from any thread
  std::function<void(const std::string&)> note;  // from any thread
};

// Asks the hub. Throws UsageError where nothing is chosen, with what there is; otherwise as Hub does.
Listing list_files(const FetchOptions& options);

// Fetches what is not in the folder as the hub lists it. A file that is there and that nobody fetched is left alone,
// which ends the command before anything is fetched (UsageError), unless it is the very same. Throws DiskFullError
// before, where there is not enough room, UsageError while another process fetches to the folder, and as download().
FetchSummary fetch_files(const FetchOptions& options, const Listing& listing, const FetchHooks& hooks);

struct FetchPreset {
  std::string name, repository, subset;
  std::vector<std::string> include;
};

const std::vector<FetchPreset>& fetch_presets();

// Throws UsageError for a name that none has.
const FetchPreset& fetch_preset(const std::string& name);

}  // namespace witan::fetch
