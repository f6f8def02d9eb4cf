// The hub's interface (huggingface.co/docs/hub/api): what a repository is at a revision, and which files it has.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "witan/fetch/digest.h"
#include "witan/fetch/http.h"
#include "witan/fetch/retry.h"

namespace witan::fetch {

// Below the folder that files are fetched to: the manifest, and what is not whole yet. Witan reads no text from there.
inline constexpr const char* kFetchFolder = ".witan-fetch";

enum class RepositoryKind : uint8_t { dataset, model };

struct Repository {
  RepositoryKind kind = RepositoryKind::dataset;
  std::string name;               // "HuggingFaceFW/fineweb-edu"
  std::string revision = "main";  // a branch, a tag or a commit
};

std::string kind_name(RepositoryKind kind);  // "dataset"

struct HubOptions {
  std::string endpoint = "https://huggingface.co";
  std::string token;
  double connect_seconds = 15, stall_seconds = 30;
  RetryOptions retry;
  std::function<void(const std::string&)> note;  // told of each request that is made again; from any thread
};

// The endpoint of HF_ENDPOINT, if there is one, and the token of HF_TOKEN. Throws UsageError for an endpoint that is no
// URL, for a token that cannot be one, and for a token that would travel unencrypted.
HubOptions hub_options_of_environment();

HttpOptions http_options(const HubOptions& options);

struct Subset {
  std::string name;
  std::vector<std::string> patterns;  // of data_files
};

struct RepositoryState {
  std::string name;             // of the repository now: it may have been renamed; empty: not said
  std::string commit;           // what the revision is now
  std::vector<Subset> subsets;  // that the dataset's card declares
};

struct HubFile {
  std::string path;  // within the repository: relative, without "." and ".."
  uint64_t size = 0;
  Digest digest;
  bool operator==(const HubFile&) const = default;
};

// Throws DataError: what the hub refuses, with the way out, and answers that are not as they should be.
class Hub {
 public:
  explicit Hub(HubOptions options);

  RepositoryState state(const Repository& repository);
  // All files below a folder of it ("" for all), sorted by path. The names are safe to use below a folder of one's own.
  std::vector<HubFile> files(const Repository& repository, const std::string& commit, const std::string& folder);

 private:
  // The whole body; `next` is the page that follows.
  std::string get(const Repository& repository, const std::string& url, std::string* next);

  HubOptions options_;
  HttpClient client_;
};

std::string file_url(const HubOptions& options, const Repository& repository, const std::string& commit,
                     const std::string& path);

// Throws UsageError for a name that no repository can have.
void check_repository(const Repository& repository);
// Throws DataError for the name of a file that would not lie within the folder it is fetched to.
void check_file_name(const std::string& path);

// What a failed request comes to, in words: what was asked, what came, why, and the way out.
std::string describe_failure(const HubOptions& options, const Repository& repository, const HttpResult& result);

// Parse what the hub answers (hub_answers.cpp). Each throws DataError naming `where` for an answer that is malformed.

// The description of a repository at a revision.
RepositoryState parse_state(std::string_view text, const std::string& where);
// A page of the list of files, without folders. The paths are safe to use below a folder of one's own.
std::vector<HubFile> parse_files(std::string_view text, const std::string& where);
// The address of the next page, from a Link header (RFC 8288) such as <https://...>; rel="next"; "" without one.
std::string next_page(const HttpResult& result);

}  // namespace witan::fetch
