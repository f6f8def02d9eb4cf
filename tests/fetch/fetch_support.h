// Fetching from a hub on this machine, in a test.
#pragma once

#include <gtest/gtest.h>

#include "support/hub_server.h"
#include "support/message_of.h"
#include "support/temp_folder.h"
#include "witan/base/files/file.h"
#include "witan/fetch/fetch.h"

namespace witan::fetch {

// Small segments, and waits of one millisecond.
inline FetchOptions options_for(const test::HubServer& server, const fs::path& to) {
  ::setenv("no_proxy", "127.0.0.1", 1);
  FetchOptions options;
  options.repository.name = "owner/corpus";
  options.to = to;
  options.hub.endpoint = server.endpoint();
  options.hub.retry = {4, 0.001, 0.002};
  options.hub.connect_seconds = 5;
  options.download = {4, 20'000, 4'000};
  return options;
}

inline test::HubRepository corpus() {
  test::HubRepository repository;
  repository.name = "owner/corpus";
  repository.files = {{"README.md", "# corpus\n"},
                      {"empty.txt", ""},
                      {"data/a.jsonl", test::random_bytes(100'001, 1)},
                      {"data/b.jsonl", test::random_bytes(50'000, 2)},
                      {"data/deep er/ü%.jsonl", test::random_bytes(1'000, 3)}};
  return repository;
}

struct Fetched {
  Listing listing;
  FetchSummary summary;
  std::vector<std::string> notes;
  uint64_t announced = 0, progress = 0;
};

inline Fetched fetch_all(FetchOptions options) {
  Fetched fetched;
  std::mutex mutex;
  options.hub.note = [&](const std::string& note) {
    const std::lock_guard lock(mutex);
    fetched.notes.push_back(note);
  };
  fetched.listing = list_files(options);
  FetchHooks hooks;
  hooks.note = options.hub.note;
  hooks.begin = [&](uint64_t bytes) { fetched.announced = bytes; };
  hooks.progress = [&](uint64_t bytes) { fetched.progress = bytes; };
  fetched.summary = fetch_files(options, fetched.listing, hooks);
  return fetched;
}

// Whether the folder holds exactly these files, apart from Witan's own folder.
inline void expect_files(const fs::path& folder, const std::map<std::string, std::string>& files) {
  std::set<std::string> there;
  for (fs::recursive_directory_iterator walk(folder), end; walk != end; ++walk) {
    if (walk->path().filename() == kFetchFolder) {
      walk.disable_recursion_pending();
      continue;
    }
    if (walk->is_regular_file()) there.insert(walk->path().lexically_relative(folder).string());
  }
  for (const auto& [path, content] : files) {
    EXPECT_TRUE(there.erase(path)) << path << " is missing";
    if (fs::exists(folder / path)) {
      EXPECT_TRUE(read_file(folder / path) == content) << path;
    }
  }
  EXPECT_TRUE(there.empty()) << *there.begin();
}

}  // namespace witan::fetch
