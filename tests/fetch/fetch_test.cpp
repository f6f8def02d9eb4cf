#include "witan/fetch/fetch.h"

#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "fetch/fetch_support.h"
#include "witan/base/error.h"

namespace witan::fetch {
namespace {

using test::HubFault;
using test::HubRequest;
using test::message_of;

class FetchTest : public ::testing::Test {
 protected:
  FetchTest() : options_(options_for(server_, folder_ / "to")) { server_.add(corpus()); }

  void fail_content(std::function<std::optional<HubFault>(const HubRequest&)> fault) {
    server_.set_fault([fault = std::move(fault)](const HubRequest& request) -> std::optional<HubFault> {
      return request.content ? fault(request) : std::nullopt;
    });
  }
  std::string refusal() {
    return message_of<DataError>([&] { fetch_all(options_); });
  }
  static void expect_piece(const std::string& message, const std::string& piece) {
    EXPECT_NE(message.find(piece), std::string::npos) << "no \"" << piece << "\" in: " << message;
  }

  const test::TempFolder folder_;
  test::HubServer server_;
  FetchOptions options_;
};

TEST_F(FetchTest, FetchesTheListedFiles) {
  const Fetched fetched = fetch_all(options_);
  expect_files(options_.to, corpus().files);
  EXPECT_EQ(fetched.summary.fetched, 5);
  EXPECT_EQ(fetched.summary.fetched_bytes, fetched.announced);
  EXPECT_EQ(fetched.progress, fetched.announced);
  EXPECT_FALSE(fs::exists(options_.to / kFetchFolder / "parts"));
  EXPECT_EQ(server_.content_requests("data/a.jsonl"),
            2 * 6);  // six segments, each requested from the hub and then from the other server
}

TEST_F(FetchTest, FetchesNothingTwice) {
  fetch_all(options_);
  server_.forget_requests();
  const Fetched again = fetch_all(options_);
  EXPECT_EQ(server_.content_requests(), 0);
  EXPECT_EQ(again.summary.fetched, 0);
  EXPECT_EQ(again.summary.there, 5);
  EXPECT_EQ(again.announced, 0u);
  options_.verify = true;
  EXPECT_EQ(fetch_all(options_).summary.there, 5);
  fs::remove(options_.to / kFetchFolder / "manifest.jsonl");  // the hashes show that the files are the same
  options_.verify = false;
  EXPECT_EQ(fetch_all(options_).summary.there, 5);
  EXPECT_EQ(server_.content_requests(), 0);
  const std::string manifest = read_file(options_.to / kFetchFolder / "manifest.jsonl");
  EXPECT_EQ(std::ranges::count(manifest, '\n'), 1 + 5) << "recorded, so that nothing is hashed next time";
}

TEST_F(FetchTest, HasTheSameResultOnAnyNumberOfConnections) {
  for (const int connections : {1, 2, 16}) {
    options_.to = folder_ / std::to_string(connections);
    options_.download.connections = connections;
    options_.download.segment_bytes = 7'777;
    fetch_all(options_);
    expect_files(options_.to, corpus().files);
  }
}

TEST_F(FetchTest, ContinuesCutTransfers) {
  std::map<std::string, int> ends;  // requests by their end: the first two responses for each segment are cut
  fail_content([&](const HubRequest& request) -> std::optional<HubFault> {
    const std::string range = request.header("range");
    if (ends[request.path + range.substr(std::min(range.size(), range.find('-')))]++ >= 2) return std::nullopt;
    return HubFault{.cut_after = 1'500};
  });
  const Fetched fetched = fetch_all(options_);
  expect_files(options_.to, corpus().files);
  EXPECT_FALSE(fetched.notes.empty());
}

// Progress resets the count of retries: a segment may be cut more often than a request may be retried.
TEST_F(FetchTest, ResetsRetriesAfterProgress) {
  fail_content([](const HubRequest&) { return HubFault{.cut_after = 3'000}; });
  fetch_all(options_);
  expect_files(options_.to, corpus().files);
}

// Progress is recorded during a transfer, not only at its end, so a kill loses little.
TEST_F(FetchTest, RecordsProgressDuringATransfer) {
  options_.download.connections = 1;
  options_.download.segment_bytes = 200'000;
  bool recorded = false;
  FetchHooks hooks;
  hooks.progress = [&](uint64_t) {
    for (const auto& part : fs::directory_iterator(options_.to / kFetchFolder / "parts"))
      recorded |= part.path().extension() == ".ranges" && part.file_size() > 0;
  };
  fetch_files(options_, list_files(options_), hooks);
  EXPECT_TRUE(recorded);
}

TEST_F(FetchTest, ResumesWhereItStopped) {
  options_.hub.retry.retries = 0;
  options_.download.connections = 1;
  std::atomic<int64_t> left = 5;
  fail_content([&](const HubRequest&) -> std::optional<HubFault> {
    if (left-- > 0) return std::nullopt;
    return HubFault{.cut_after = 9'000};
  });
  EXPECT_NE(refusal(), "");
  server_.set_fault({});
  const Fetched fetched = fetch_all(options_);
  // README.md, a.jsonl and 9,000 bytes of b.jsonl had arrived; progress is recorded when the connection ends.
  EXPECT_EQ(fetched.announced, 50'000u - 9'000u + 1'000u);
  EXPECT_EQ(fetched.announced, fetched.progress);
  expect_files(options_.to, corpus().files);
}

TEST_F(FetchTest, RetriesAfterTransientErrors) {
  for (const int status : {429, 500, 502, 503, 504}) {
    options_.to = folder_ / std::to_string(status);
    std::set<std::string> seen;  // each request fails once
    server_.set_fault([&](const HubRequest& request) -> std::optional<HubFault> {
      if (request.path.starts_with("/api/") || !seen.insert(request.path + request.header("range")).second)
        return std::nullopt;
      return HubFault{.status = status, .headers = "Retry-After: 0\r\n"};
    });
    EXPECT_FALSE(fetch_all(options_).notes.empty());
    expect_files(options_.to, corpus().files);
  }
}

TEST_F(FetchTest, StopsAfterPermanentErrors) {
  fail_content([](const HubRequest&) { return HubFault{.status = 503}; });
  expect_piece(refusal(), "answers 503: the hub is temporarily unavailable");
  EXPECT_LE(server_.content_requests(), 2 * 4 * 5 + 4);  // each of four connections tried at most five times
  fail_content([](const HubRequest&) { return HubFault{.status = 403}; });
  expect_piece(refusal(), "answers 403");
}

TEST_F(FetchTest, WorksWithServersWithoutRanges) {
  fail_content([](const HubRequest&) { return HubFault{.ignores_ranges = true}; });
  fetch_all(options_);
  expect_files(options_.to, corpus().files);
  options_.to = folder_ / "cut";
  std::set<std::string> seen;  // the first response for each file is cut
  fail_content([&](const HubRequest& request) {
    return HubFault{.cut_after = seen.insert(request.path).second ? 30'000 : -1, .ignores_ranges = true};
  });
  const Fetched fetched = fetch_all(options_);
  expect_files(options_.to, corpus().files);
  EXPECT_EQ(fetched.progress, fetched.announced) << "repeated bytes count once";
  options_.to = folder_ / "wrong";
  options_.download.connections = 1;
  seen.clear();
  fail_content([&](const HubRequest& request) {
    return HubFault{.wrong_byte = seen.insert(request.path).second, .ignores_ranges = true};
  });
  fetch_all(options_);
  expect_files(options_.to, corpus().files);
}

TEST_F(FetchTest, RefetchesWrongBytesOnce) {
  std::atomic<bool> wrong = true;
  fail_content([&](const HubRequest& request) -> std::optional<HubFault> {
    if (!request.path.ends_with("a.jsonl") || request.header("range") != "bytes=40000-59999" || !wrong.exchange(false))
      return std::nullopt;
    return HubFault{.wrong_byte = true};
  });
  const Fetched fetched = fetch_all(options_);
  ASSERT_EQ(fetched.notes.size(), 1u);
  expect_piece(fetched.notes[0], "data/a.jsonl: the downloaded file has a different hash than the hub lists");
  expect_files(options_.to, corpus().files);
}

TEST_F(FetchTest, StopsAtWrongHashes) {
  fail_content([](const HubRequest&) { return HubFault{.wrong_byte = true}; });
  const std::string message = refusal();
  expect_piece(message, "the downloaded file has the hash");
  expect_piece(message, "2 times");
  EXPECT_FALSE(fs::exists(options_.to / "data/a.jsonl"));
  server_.set_fault({});
  fetch_all(options_);
  expect_files(options_.to, corpus().files);
}

TEST_F(FetchTest, StopsAtWrongSizes) {
  fail_content([](const HubRequest&) { return HubFault{.more_bytes = 1}; });
  expect_piece(refusal(), "but " + server_.content_endpoint());
  fail_content([](const HubRequest&) { return HubFault{.more_bytes = 1, .ignores_ranges = true}; });
  expect_piece(refusal(), "but " + server_.content_endpoint());
  fail_content([](const HubRequest&) { return HubFault{.wrong_range = true}; });
  expect_piece(refusal(), "a different range than requested");
  fail_content([](const HubRequest&) { return HubFault{.endless = true, .ignores_ranges = true}; });
  expect_piece(refusal(), "the server sent more than the");
  fail_content([](const HubRequest&) { return HubFault{.status = 416}; });
  expect_piece(refusal(), "has fewer");
  for (const auto& [path, content] : corpus().files)
    EXPECT_FALSE(path.ends_with("a.jsonl") && fs::exists(options_.to / path));
}

TEST_F(FetchTest, RefetchesDamagedFiles) {
  fetch_all(options_);
  fs::resize_file(options_.to / "data/a.jsonl", 10);
  std::ofstream(options_.to / "data/b.jsonl") << std::string(50'000, 'x');
  const Fetched fetched = fetch_all(options_);
  EXPECT_EQ(fetched.summary.fetched, 2);
  EXPECT_EQ(fetched.notes.size(), 2u);
  expect_files(options_.to, corpus().files);
}

TEST_F(FetchTest, VerifyFindsDamageWithUnchangedSizeAndTime) {
  fetch_all(options_);
  const fs::path path = options_.to / "data/b.jsonl";
  const auto time = fs::last_write_time(path);
  std::ofstream(path) << std::string(50'000, 'x');
  fs::last_write_time(path, time);
  EXPECT_EQ(fetch_all(options_).summary.fetched, 0);
  options_.verify = true;
  EXPECT_EQ(fetch_all(options_).summary.fetched, 1);
  expect_files(options_.to, corpus().files);
}

TEST_F(FetchTest, ReplacesFilesThatChangedInANewRevision) {
  fetch_all(options_);
  test::HubRepository next = corpus();
  next.commit = std::string(40, 'b');
  next.files["data/b.jsonl"] = test::random_bytes(50'000, 9);
  server_.add(next);
  EXPECT_EQ(fetch_all(options_).summary.fetched, 1);
  expect_files(options_.to, next.files);
}

TEST_F(FetchTest, NamesFilesThatAreNoLongerSelected) {
  std::string notes;
  FetchHooks hooks;
  hooks.note = [&](const std::string& note) { notes += note + "\n"; };
  const auto fetch = [&] {
    notes.clear();
    fetch_files(options_, list_files(options_), hooks);
  };
  fetch();
  EXPECT_EQ(notes, "");
  test::HubRepository next = corpus();
  next.commit = std::string(40, 'b');
  next.files["data/renamed.jsonl"] = next.files.extract("data/b.jsonl").mapped();
  server_.add(next);
  fetch();
  expect_piece(notes,
               "also holds 1 file of an earlier fetch that is not chosen now, or not in the repository any more: "
               "data/b.jsonl; what reads the folder reads them too");
  fs::remove(options_.to / "data/b.jsonl");
  fetch();
  EXPECT_EQ(notes, "");
}

TEST_F(FetchTest, LeavesForeignFilesAlone) {
  fs::create_directories(options_.to);
  std::ofstream(options_.to / "README.md") << "mine";
  expect_piece(message_of<UsageError>([&] { fetch_all(options_); }), "was not fetched by witan");
  EXPECT_EQ(read_file(options_.to / "README.md"), "mine");
  EXPECT_EQ(server_.content_requests(), 0);
  std::ofstream(options_.to / "README.md") << corpus().files.at("README.md");  // identical contents
  EXPECT_EQ(fetch_all(options_).summary.there, 1);
}

TEST_F(FetchTest, KeepsOneRepositoryPerFolder) {
  fetch_all(options_);
  test::HubRepository other = corpus();
  other.name = "owner/other";
  server_.add(other);
  options_.repository.name = "owner/other";
  expect_piece(message_of<UsageError>([&] { fetch_all(options_); }), "holds files of the dataset owner/corpus");
}

TEST_F(FetchTest, LocksTheFolder) {
  std::string message;
  std::atomic<bool> asked = false;
  fail_content([&](const HubRequest&) -> std::optional<HubFault> {
    if (!asked.exchange(true)) {
      std::thread([&] {
        test::HubServer second;
        second.add(corpus());
        message = message_of<UsageError>([&] { fetch_all(options_for(second, options_.to)); });
      }).join();
    }
    return std::nullopt;
  });
  fetch_all(options_);
  expect_piece(message, "another process is fetching to");
}

TEST_F(FetchTest, ChecksDiskSpaceFirst) {
  Listing listing = list_files(options_);
  listing.files[0].size = uint64_t{1} << 49;
  expect_piece(message_of<DiskFullError>([&] { fetch_files(options_, listing, {}); }), "512 TiB must be downloaded");
  EXPECT_EQ(server_.content_requests(), 0);
}

TEST_F(FetchTest, SelectsBySubsetsAndPatterns) {
  test::HubRepository repository = corpus();
  repository.card = nlohmann::json::parse(
      R"({"configs": [{"config_name": "some", "data_files": "data/*.jsonl"}, {"config_name": "none"}]})");
  server_.add(repository);
  options_.subset = "some";
  EXPECT_EQ(list_files(options_).files.size(), 2u);
  options_.exclude = {"*b.jsonl"};
  EXPECT_EQ(list_files(options_).files.size(), 1u);
  options_.include = {"*b.jsonl"};
  expect_piece(message_of<UsageError>([&] { list_files(options_); }), "no file of owner/corpus is chosen");
  options_.subset = "somee";
  expect_piece(message_of<UsageError>([&] { list_files(options_); }), "(did you mean some?): it has none, some");
  options_.subset = "none";
  expect_piece(message_of<UsageError>([&] { list_files(options_); }), "names no files");
  server_.add(corpus());
  expect_piece(message_of<UsageError>([&] { list_files(options_); }), "declares no subsets");
}

// Large files are on another host, whose signed URLs refuse other authorization; small ones are in a cache.
TEST_F(FetchTest, FollowsTheHubToXetStorage) {
  test::HubRepository repository = corpus();
  repository.token = "hf_right";
  server_.add(repository);
  options_.hub.token = "hf_right";
  std::atomic<bool> cut = false;
  fail_content([&](const HubRequest& request) -> std::optional<HubFault> {
    const bool first = request.path.ends_with("a.jsonl") && request.header("range").starts_with("bytes=0-");
    if (!first || cut.exchange(true)) return std::nullopt;
    return HubFault{.cut_after = 5'000};
  });
  fetch_all(options_);
  expect_files(options_.to, corpus().files);
  EXPECT_TRUE(cut);
  int64_t content = 0, cached = 0, continued = 0;
  for (const HubRequest& request : server_.requests()) {
    content += request.content ? 1 : 0;
    cached += request.path.starts_with("/api/resolve-cache/") ? 1 : 0;
    continued += request.content && request.header("range").find("=5000-") != std::string::npos ? 1 : 0;
    EXPECT_EQ(request.header("authorization"), request.content ? "" : "Bearer hf_right") << request.path;
  }
  EXPECT_GT(content, 6);
  EXPECT_EQ(cached, 1) << "README.md; an empty file is not requested";
  EXPECT_EQ(continued, 1) << "resumed where it was cut";
}

TEST_F(FetchTest, ComparesListedAndRedirectedFiles) {
  for (const char* header : {"X-Linked-Size: 99999\r\n", "X-Linked-ETag: \"%\"\r\n"}) {
    std::string headers = header;
    if (const size_t at = headers.find('%'); at != std::string::npos) headers.replace(at, 1, std::string(64, 'a'));
    server_.set_fault([&](const HubRequest& request) -> std::optional<HubFault> {
      if (!request.path.ends_with("/a.jsonl") || request.content) return std::nullopt;
      return HubFault{.headers = headers};
    });
    const std::string message = refusal();
    expect_piece(message, "data/a.jsonl: the hub lists 100001 bytes with the hash ");
    expect_piece(message,
                 headers.find("99999") != std::string::npos ? "redirects to 99999 bytes" : std::string(64, 'a'));
    expect_piece(message, "run the same command again");
  }
  EXPECT_FALSE(fs::exists(options_.to / "data/a.jsonl"));
}

TEST_F(FetchTest, RenewsRefusedSignedUrls) {
  std::atomic<int> refusals = 4;
  fail_content([&](const HubRequest&) -> std::optional<HubFault> {
    if (refusals-- <= 0) return std::nullopt;
    return HubFault{.status = 403};
  });
  EXPECT_FALSE(fetch_all(options_).notes.empty());
  expect_files(options_.to, corpus().files);
  options_.to = folder_ / "never";
  fail_content([](const HubRequest&) { return HubFault{.status = 403}; });
  expect_piece(refusal(), "answers 403: the server of large files refuses the signed address that the hub gave for it");
}

TEST_F(FetchTest, FindsRenamedRepositories) {
  server_.rename("dataset", "former/name", "owner/corpus");
  server_.set_page_size(2);
  options_.repository.name = "former/name";
  const Fetched fetched = fetch_all(options_);
  expect_files(options_.to, corpus().files);
  EXPECT_EQ(fetched.notes, (std::vector<std::string>{"dataset former/name is now called owner/corpus"}));
}

// Like the hub, which limits the rate of API calls and of file URLs by time windows.
TEST_F(FetchTest, WaitsForTheNextRateLimitWindow) {
  std::mutex mutex;
  std::set<std::string> limited;  // the list, and the first request for each file
  server_.set_fault([&](const HubRequest& request) -> std::optional<HubFault> {
    const std::lock_guard lock(mutex);
    const bool asked =
        request.path.find("/tree/") != std::string::npos || request.path.find("/resolve/") != std::string::npos;
    if (!asked || !limited.insert(request.path).second) return std::nullopt;
    return HubFault{.status = 429,
                    .headers =
                        "RateLimit: \"resolvers\";r=0;t=0\r\nRateLimit-Policy: \"fixed window\";"
                        "\"resolvers\";q=3000;w=300\r\n"};
  });
  const Fetched fetched = fetch_all(options_);
  expect_files(options_.to, corpus().files);
  EXPECT_GE(fetched.notes.size(), 1u + 4u);
}

// The cards and folders of both corpora that have presets, with few and small files.
test::HubRepository fineweb_edu() {
  test::HubRepository repository;
  repository.name = "HuggingFaceFW/fineweb-edu";
  nlohmann::json configs = nlohmann::json::array();
  const auto add = [&](const std::string& name, const std::string& path) {
    configs.push_back({{"config_name", name}, {"data_files", {{{"split", "train"}, {"path", {path}}}}}});
  };
  add("default", "data/*/*");
  for (const char* size : {"10BT", "100BT", "350BT"}) {
    add(std::string("sample-") + size, std::string("sample/") + size + "/*");
    for (int i = 0; i < 3; ++i)
      repository.files[std::string("sample/") + size + "/00" + std::to_string(i) + "_00000.parquet"] =
          test::random_bytes(30'000 + static_cast<size_t>(i), std::string(size).size());
  }
  for (const char* dump : {"CC-MAIN-2013-20", "CC-MAIN-2024-10"}) {
    add(dump, std::string("data/") + dump + "/*");
    repository.files[std::string("data/") + dump + "/train-00000-of-00014.parquet"] = test::random_bytes(5'000, 7);
  }
  repository.files["README.md"] = "# FineWeb-Edu";
  repository.card = {{"configs", configs}};
  return repository;
}
test::HubRepository dclm_baseline() {
  test::HubRepository repository;
  repository.name = "mlfoundations/dclm-baseline-1.0";
  repository.files["README.md"] = "## DCLM-baseline";
  for (const char* global : {"01", "02", "10"})
    for (const char* local : {"0", "9"})
      repository.files[std::string("global-shard_") + global + "_of_10/local-shard_" + local +
                       "_of_10/shard_00000000_processed.jsonl.zst"] = test::random_bytes(25'000, 11);
  return repository;
}

TEST_F(FetchTest, PresetsSelectTheFilesOfTheirCorpora) {
  server_.add(fineweb_edu());
  server_.add(dclm_baseline());
  server_.set_page_size(4);
  const std::map<std::string, std::pair<std::string, size_t>> chosen = {
      {"fineweb-edu", {"data/", 2}},
      {"fineweb-edu-10bt", {"sample/10BT/", 3}},
      {"fineweb-edu-100bt", {"sample/100BT/", 3}},
      {"fineweb-edu-350bt", {"sample/350BT/", 3}},
      {"dclm-baseline", {"global-shard_", 6}},
      {"dclm-baseline-10pct", {"global-shard_01_of_10/", 2}}};
  ASSERT_EQ(chosen.size(), fetch_presets().size());
  for (const auto& [name, files] : chosen) {
    const FetchPreset& preset = fetch_preset(name);
    options_.repository.name = preset.repository;
    options_.subset = preset.subset;
    options_.include = preset.include;
    options_.to = folder_ / name;
    std::atomic<bool> cut = false;  // one file is cut, and continued
    fail_content([&](const HubRequest&) -> std::optional<HubFault> {
      if (cut.exchange(true)) return std::nullopt;
      return HubFault{.cut_after = 1'000};
    });
    const Fetched fetched = fetch_all(options_);
    EXPECT_EQ(fetched.listing.files.size(), files.second) << name;
    std::map<std::string, std::string> expected;
    for (const auto& [path, content] : (preset.subset.empty() ? dclm_baseline() : fineweb_edu()).files)
      if (path.starts_with(files.first)) expected[path] = content;
    expect_files(options_.to, expected);
  }
}

TEST_F(FetchTest, FetchesTheModelFilesThatWitanReads) {
  test::HubRepository model;
  model.kind = "model";
  model.name = "owner/model";
  model.files = {{"config.json", "{}"},    {"model.safetensors", test::random_bytes(5'000)},
                 {"merges.txt", "x"},      {"pytorch_model.bin", std::string(6'000, 'x')},
                 {"tokenizer.json", "{}"}, {"original/consolidated.00.safetensors", "x"}};
  server_.add(model);
  options_.repository = {RepositoryKind::model, "owner/model"};
  const Fetched fetched = fetch_all(options_);
  EXPECT_EQ(fetched.listing.left_out, 2);
  EXPECT_EQ(fetched.listing.left_out_bytes, 6'001u);
  model.files.erase("pytorch_model.bin");
  model.files.erase("original/consolidated.00.safetensors");
  expect_files(options_.to, model.files);
  options_.include = {"*"};
  EXPECT_EQ(list_files(options_).files.size(), 6u);
  model.files.erase("model.safetensors");
  server_.add(model);
  options_.include = {};
  expect_piece(message_of<UsageError>([&] { list_files(options_); }), "has no weights as .safetensors");
}

TEST_F(FetchTest, WritesAManifest) {
  fetch_all(options_);
  std::istringstream lines(read_file(options_.to / kFetchFolder / "manifest.jsonl"));
  std::string line;
  std::getline(lines, line);
  EXPECT_EQ(nlohmann::json::parse(line),
            nlohmann::json({{"format", 1}, {"kind", "dataset"}, {"repository", "owner/corpus"}}));
  std::map<std::string, nlohmann::json> files;
  while (std::getline(lines, line)) {
    const auto file = nlohmann::json::parse(line);
    files[file["path"]] = file;
  }
  ASSERT_EQ(files.size(), 5u);
  EXPECT_EQ(files["README.md"]["git_blob"].get<std::string>().size(), 40u);
  EXPECT_EQ(files["data/b.jsonl"]["sha256"], test::hex_digest(EVP_sha256(), corpus().files.at("data/b.jsonl")));
  EXPECT_EQ(files["data/b.jsonl"]["commit"], corpus().commit);
  const std::string whole = read_file(options_.to / kFetchFolder / "manifest.jsonl");
  std::ofstream(options_.to / kFetchFolder / "manifest.jsonl", std::ios::app) << "{\"path\": torn";
  EXPECT_EQ(fetch_all(options_).summary.there, 5);
  EXPECT_EQ(read_file(options_.to / kFetchFolder / "manifest.jsonl"), whole);
  std::ofstream(options_.to / kFetchFolder / "manifest.jsonl", std::ios::app) << "{\"path\": 7}\n";
  EXPECT_THROW(fetch_all(options_), CorruptionError);
}

TEST(FetchPresets, HaveNames) {
  EXPECT_EQ(fetch_preset("fineweb-edu-10bt").subset, "sample-10BT");
  EXPECT_EQ(fetch_preset("dclm-baseline").repository, "mlfoundations/dclm-baseline-1.0");
  for (const FetchPreset& preset : fetch_presets())
    EXPECT_NO_THROW(check_repository({RepositoryKind::dataset, preset.repository})) << preset.name;
  EXPECT_NE(message_of<UsageError>([] { fetch_preset("fineweb-edu-10b"); }).find("did you mean fineweb-edu-10bt?"),
            std::string::npos);
}

}  // namespace
}  // namespace witan::fetch
